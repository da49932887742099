// The machine behind the test accelerator: streams, events, memory, and who is ordered with whom.
// Nothing of torch in here. See docs/design/test-accelerator.md for what it models.
//
//   submit(stream, task) ──▶ queue of the stream ──▶ runs later, in any order that the waits allow
//                      └──▶ clocks: is each access ordered after the last ones?   (at once)
//
// Both proofs are always on: clocks look at what the program asked for, and late tasks show what
// happens to numbers if it asked for too little.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace toy {

constexpr int kStreamsPerDevice = 33;  // the default stream, and a pool of 32
constexpr size_t kQueueLength = 1024;  // beyond it the host has to wait, as for a real driver
constexpr size_t kRounding = 512;      // bytes are handed out in multiples

using Count = uint64_t;
using Clock = std::vector<Count>;  // by lane: how many of its tasks come before

// A task of a lane, by number.
struct Moment {
  int lane = -1;
  Count number = 0;
};

// Who touched memory, and what that was.
struct Access {
  Moment when;
  std::string what;
};

// Memory of one device. It stays mapped as long as a task may touch it, whoever let go of it.
struct Block {
  Block(size_t bytes, int device, int lane);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void* data;
  size_t bytes;
  int device;
  int lane;                     // on whose stream it was taken, and to which it goes back
  std::set<int> recorded;       // lanes that were said to use it, too
  Access written;               // the last write
  std::map<int, Access> read;   // by lane, the last read since
};
using Memory = std::shared_ptr<Block>;

// What a task does to memory.
struct Use {
  Memory memory;
  bool writes = false;
};

// Something that a stream does. It waits for nothing but its place in the stream, and `after`.
struct Task {
  std::function<void()> run;
  Moment after;
};

// A moment of a stream, with all that comes before it.
struct Event {
  Moment when;
  Clock before;
  double time_s = 0;
};

// A stream of a device: a lane of its own among all streams of all devices.
struct Lane {
  std::deque<Task> queue;
  int rank = -1;  // among those that were used since the last restart, in this order
  Count submitted = 0;
  Count done = 0;
  Clock clock;
  double time_s = 0;
  std::vector<Memory> let_go;  // memory that the next task may be given, and overwrite
};

// What everything takes by the logical clocks.
struct Times {
  double launch_s = 1e-6, kernel_s = 2e-6, bytes_per_s = 1e10;
  std::map<std::string, double> kernels;                           // by operator, instead of the two
  std::map<std::pair<int, int>, std::pair<double, double>> links;  // by devices: latency, bytes a second
};

struct Room {  // the memory of a device
  size_t limit_bytes = SIZE_MAX;
  size_t allocated_bytes = 0;  // what tensors hold
  size_t taken_bytes = 0;      // that, and what recorded streams still use
  size_t peak_bytes = 0;
  int next_of_pool = 0;
};

// Memory that was let go of, and may be used again when all of these are over.
struct Freed {
  Memory memory;
  std::vector<Moment> after;
};

class Machine {
 public:
  explicit Machine(int devices);
  static Machine& get();

  int lane_of(int device, int64_t stream) const { return device * kStreamsPerDevice + int(stream); }
  std::string name_of(int lane) const;
  int devices() const { return int(devices_.size()); }

  // --- streams and events
  int64_t stream_from_pool(int device);
  // It takes `seconds`; what the times say of its name and memory if that is negative.
  void submit(
      int lane, const std::string& what, const std::vector<Use>& uses, std::function<void()> run,
      double seconds = -1);
  double copy_s(int source, int target, size_t bytes);  // the host is -1; negative if no link was set
  Event record(int lane);
  void wait(int lane, const Event& event);
  bool happened(const Event& event);
  void host_waits(const Event& event, const std::string& why);
  void host_waits_for_device(int device, const std::string& why);

  // --- memory
  Memory allocate(int device, int lane, size_t bytes);
  void free(const Memory& memory);
  void use(const Memory& memory, int lane);
  Room statistics(int device);
  void restart_peak(int device);
  void limit(int device, size_t bytes);

  // --- what a test asks
  void restart(uint64_t seed, bool late);
  std::vector<std::string> faults();  // unordered accesses, unrecorded frees
  std::vector<std::string> waits();   // where the host waited for a device
  std::vector<std::string> issued();  // what was put on streams, in order, if that is kept
  void keep_issued(bool on);
  void set_times(Times times);
  double host_s();
  void host_spends(double seconds);

 private:
  void check(int lane, const std::string& what, const Use& use);
  void order(int lane, const Access& last, const char* verb, const std::string& what, const char* past);
  void hand_out_again(int lane);
  bool is_done(Moment moment) const { return moment.lane < 0 || lanes_[moment.lane].done >= moment.number; }
  bool comes_before(const Moment& moment, const Clock& clock) const;
  bool is_ready(const Lane& lane) const { return !lane.queue.empty() && is_done(lane.queue.front().after); }
  void push(Lane& lane, Task task);
  void run_one(const std::vector<int>& ready);
  std::vector<int> ready_lanes() const;
  void run_until(Moment moment);
  void run_a_little();
  void learn(const Clock& clock);
  void give_back_freed();
  bool make_room(int device, size_t bytes);

  std::mutex lock_;  // held while tasks run: they touch plain CPU tensors that no Python object knows
  std::vector<Lane> lanes_;
  std::vector<Room> devices_;
  Clock host_;  // what the host has waited for: one clock for all threads, in the order of real time
  double host_s_ = 0;
  Times times_;
  std::vector<Freed> freed_;
  std::mt19937_64 chance_;
  std::vector<int> favour_;  // by rank, how soon a lane runs, for a while
  int ranks_ = 0;
  bool late_ = false;
  bool keeps_issued_ = false;
  std::vector<std::string> faults_, waits_, issued_;
};

}  // namespace toy

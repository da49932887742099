#include "machine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace toy {

namespace {
void merge(Clock& clock, const Clock& other) {
  for (size_t lane = 0; lane < clock.size(); lane++) clock[lane] = std::max(clock[lane], other[lane]);
}
}  // namespace

Block::Block(size_t bytes, int device, int lane) : bytes(bytes), device(device), lane(lane) {
  data = std::aligned_alloc(kRounding, std::max(bytes, kRounding));
  std::memset(data, 0xFF, bytes);  // what was never written is no number
}

Block::~Block() { std::free(data); }

Machine::Machine(int devices) : lanes_(devices * kStreamsPerDevice), devices_(devices) {
  host_.assign(lanes_.size(), 0);
  for (auto& lane : lanes_) lane.clock.assign(lanes_.size(), 0);
  favour_.resize(lanes_.size());
}

std::string Machine::name_of(int lane) const {
  int stream = lane % kStreamsPerDevice;
  return std::to_string(lane / kStreamsPerDevice) + "/" + (stream ? "s" + std::to_string(stream) : "default");
}

// --- streams and events

int64_t Machine::stream_from_pool(int device) {
  std::lock_guard<std::mutex> guard(lock_);
  return 1 + devices_[device].next_of_pool++ % (kStreamsPerDevice - 1);
}

void Machine::submit(
    int lane, const std::string& what, const std::vector<Use>& uses, std::function<void()> run, double seconds) {
  std::lock_guard<std::mutex> guard(lock_);
  Lane& own = lanes_[lane];
  size_t bytes = 0;
  merge(own.clock, host_);
  hand_out_again(lane);
  own.clock[lane] = ++own.submitted;
  for (const Use& use : uses) {
    check(lane, what, use);
    bytes += use.memory->bytes;
  }
  host_s_ += times_.launch_s;
  auto known = times_.kernels.find(what);
  if (seconds < 0)
    seconds = known == times_.kernels.end() ? times_.kernel_s + double(bytes) / times_.bytes_per_s : known->second;
  own.time_s = std::max(own.time_s, host_s_) + seconds;
  if (keeps_issued_) issued_.push_back(name_of(lane) + " " + what);
  push(own, {std::move(run), {}});
  run_a_little();
}

double Machine::copy_s(int source, int target, size_t bytes) {
  std::lock_guard<std::mutex> guard(lock_);
  auto link = times_.links.find({source, target});
  return link == times_.links.end() ? -1 : link->second.first + double(bytes) / link->second.second;
}

Event Machine::record(int lane) {
  std::lock_guard<std::mutex> guard(lock_);
  Lane& own = lanes_[lane];
  merge(own.clock, host_);
  own.time_s = std::max(own.time_s, host_s_);
  return {{lane, own.submitted}, own.clock, own.time_s};
}

void Machine::wait(int lane, const Event& event) {
  std::lock_guard<std::mutex> guard(lock_);
  Lane& own = lanes_[lane];
  merge(own.clock, event.before);
  own.time_s = std::max(own.time_s, event.time_s);
  own.clock[lane] = ++own.submitted;
  push(own, {[] {}, event.when});
  run_a_little();
}

bool Machine::happened(const Event& event) {
  std::lock_guard<std::mutex> guard(lock_);
  run_a_little();  // whoever asks again and again gets a yes in the end
  if (!is_done(event.when)) return false;
  if (event.when.lane >= 0) merge(host_, event.before);  // the host has seen it
  return true;
}

void Machine::host_waits(const Event& event, const std::string& why) {
  std::lock_guard<std::mutex> guard(lock_);
  if (event.when.lane < 0) return;
  waits_.push_back(why);
  run_until(event.when);
  merge(host_, event.before);
  host_s_ = std::max(host_s_, event.time_s);
}

void Machine::host_waits_for_device(int device, const std::string& why) {
  for (int stream = 0; stream < kStreamsPerDevice; stream++) {
    Event last = record(lane_of(device, stream));
    if (last.when.number || !stream) host_waits(last, why);
  }
}

// --- running what waits

void Machine::push(Lane& lane, Task task) {
  if (lane.rank < 0) lane.rank = ranks_++;
  lane.queue.push_back(std::move(task));
}

std::vector<int> Machine::ready_lanes() const {
  std::vector<int> ready;
  for (size_t lane = 0; lane < lanes_.size(); lane++)
    if (is_ready(lanes_[lane])) ready.push_back(int(lane));
  return ready;
}

void Machine::run_one(const std::vector<int>& ready) {
  if (chance_() % 16 == 0)  // from now on others are fast, and others slow
    for (int& favour : favour_) favour = int(chance_() % 64);
  auto favour = [&](int lane) { return std::pair(favour_[lanes_[lane].rank], lanes_[lane].rank); };
  int lane = *std::max_element(
      ready.begin(), ready.end(), [&](int one, int other) { return favour(one) < favour(other); });
  Task task = std::move(lanes_[lane].queue.front());
  lanes_[lane].queue.pop_front();
  try {
    task.run();
  } catch (const std::exception& error) {
    std::string what = error.what();
    faults_.push_back("FAILED: " + what.substr(0, what.find('\n')));
  }
  lanes_[lane].done++;
  give_back_freed();
}

void Machine::run_until(Moment moment) {
  while (!is_done(moment)) run_one(ready_lanes());
}

// After a submission: at once if nothing is late, else seldom, and if a queue is full.
void Machine::run_a_little() {
  auto full = [&] {
    return std::any_of(
        lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.queue.size() > kQueueLength; });
  };
  for (int64_t runs = late_ ? (chance_() % 32 ? 0 : int64_t(chance_() % 8)) : INT64_MAX; runs > 0 || full(); runs--) {
    std::vector<int> ready = ready_lanes();
    if (ready.empty()) return;
    run_one(ready);
  }
}

// --- memory

Memory Machine::allocate(int device, int lane, size_t bytes) {
  std::lock_guard<std::mutex> guard(lock_);
  size_t rounded = (bytes + kRounding - 1) / kRounding * kRounding;
  if (!make_room(device, rounded)) return nullptr;
  merge(lanes_[lane].clock, host_);
  hand_out_again(lane);
  Room& own = devices_[device];
  own.allocated_bytes += rounded;
  own.taken_bytes += rounded;
  own.peak_bytes = std::max(own.peak_bytes, own.allocated_bytes);
  return std::make_shared<Block>(rounded, device, lane);
}

bool Machine::make_room(int device, size_t bytes) {
  Room& own = devices_[device];
  auto is_full = [&] { return own.taken_bytes + bytes > own.limit_bytes; };
  while (is_full()) {  // wait for what other streams still use, then look again
    auto ours = std::find_if(freed_.begin(), freed_.end(), [&](const Freed& one) {
      return one.memory->device == device;
    });
    if (ours == freed_.end()) return false;
    std::vector<Moment> after = ours->after;
    waits_.push_back("allocator");
    for (Moment moment : after) run_until(moment);
    give_back_freed();
  }
  return true;
}

void Machine::free(const Memory& memory) {
  std::lock_guard<std::mutex> guard(lock_);
  devices_[memory->device].allocated_bytes -= memory->bytes;
  if (memory->recorded.empty()) {
    devices_[memory->device].taken_bytes -= memory->bytes;
    lanes_[memory->lane].let_go.push_back(memory);
    return;
  }
  Freed freed{memory, {{memory->lane, lanes_[memory->lane].submitted}}};
  for (int lane : memory->recorded) freed.after.push_back({lane, lanes_[lane].submitted});
  freed_.push_back(std::move(freed));
  give_back_freed();
}

// What was let go of and not recorded may be handed out right now: whoever used it must be ordered before.
void Machine::hand_out_again(int home) {
  Lane& own = lanes_[home];
  std::vector<Memory> let_go;
  let_go.swap(own.let_go);
  for (const Memory& memory : let_go) {
    auto left_behind = [&](const Access& access) {
      if (memory->recorded.count(access.when.lane) || comes_before(access.when, own.clock)) return;
      faults_.push_back(
          "FREE: " + access.what + " on " + name_of(access.when.lane) + " may still use memory of " +
          name_of(home) + " that was let go of: it was not recorded");
    };
    left_behind(memory->written);
    for (const auto& entry : memory->read) left_behind(entry.second);
    own.clock[home] = ++own.submitted;
    push(own, {[memory] { std::memset(memory->data, 0xFF, memory->bytes); }, {}});
  }
}

void Machine::give_back_freed() {
  for (size_t index = 0; index < freed_.size();) {
    Freed& one = freed_[index];
    if (std::all_of(one.after.begin(), one.after.end(), [&](Moment moment) { return is_done(moment); })) {
      devices_[one.memory->device].taken_bytes -= one.memory->bytes;
      lanes_[one.memory->lane].let_go.push_back(one.memory);
      freed_.erase(freed_.begin() + long(index));
    } else {
      index++;
    }
  }
}

void Machine::use(const Memory& memory, int lane) {
  std::lock_guard<std::mutex> guard(lock_);
  if (lane != memory->lane) memory->recorded.insert(lane);
}

Room Machine::statistics(int device) {
  std::lock_guard<std::mutex> guard(lock_);
  return devices_[device];
}

void Machine::restart_peak(int device) {
  std::lock_guard<std::mutex> guard(lock_);
  devices_[device].peak_bytes = devices_[device].allocated_bytes;
}

void Machine::limit(int device, size_t bytes) {
  std::lock_guard<std::mutex> guard(lock_);
  devices_[device].limit_bytes = bytes;
}

// --- clocks

bool Machine::comes_before(const Moment& moment, const Clock& clock) const {
  return moment.lane < 0 || clock[moment.lane] >= moment.number;
}

void Machine::order(int lane, const Access& last, const char* verb, const std::string& what, const char* past) {
  if (comes_before(last.when, lanes_[lane].clock)) return;
  faults_.push_back(
      "RACE: " + what + " on " + name_of(lane) + " " + verb + " what " + last.what + " on " +
      name_of(last.when.lane) + " " + past);
}

void Machine::check(int lane, const std::string& what, const Use& use) {
  Block& block = *use.memory;
  Access now{{lane, lanes_[lane].submitted}, what};
  order(lane, block.written, use.writes ? "writes" : "reads", what, "wrote");
  if (!use.writes) {
    block.read[lane] = now;
    return;
  }
  for (const auto& entry : block.read) order(lane, entry.second, "writes", what, "read");
  block.read.clear();
  block.written = now;
}

// --- what a test asks

void Machine::restart(uint64_t seed, bool late) {
  for (int device = 0; device < devices(); device++) host_waits_for_device(device, "restart");
  std::lock_guard<std::mutex> guard(lock_);
  chance_.seed(seed);
  for (Lane& lane : lanes_) {
    lane.let_go.clear();  // all is over, and what comes next is ordered after it
    lane.rank = -1;
  }
  ranks_ = 0;
  for (int& favour : favour_) favour = int(chance_() % 64);
  late_ = late;
  times_ = {};
  faults_.clear();
  waits_.clear();
  issued_.clear();
}

// With what would be found if every stream took memory now.
std::vector<std::string> Machine::faults() {
  std::lock_guard<std::mutex> guard(lock_);
  for (size_t lane = 0; lane < lanes_.size(); lane++) {
    merge(lanes_[lane].clock, host_);
    hand_out_again(int(lane));
  }
  return faults_;
}

std::vector<std::string> Machine::waits() {
  std::lock_guard<std::mutex> guard(lock_);
  return waits_;
}

std::vector<std::string> Machine::issued() {
  std::lock_guard<std::mutex> guard(lock_);
  return issued_;
}

void Machine::set_times(Times times) {
  std::lock_guard<std::mutex> guard(lock_);
  times_ = std::move(times);
}

double Machine::host_s() {
  std::lock_guard<std::mutex> guard(lock_);
  return host_s_;
}

void Machine::host_spends(double seconds) {
  std::lock_guard<std::mutex> guard(lock_);
  host_s_ += seconds;
}

void Machine::keep_issued(bool on) {
  std::lock_guard<std::mutex> guard(lock_);
  keeps_issued_ = on;
}

}  // namespace toy

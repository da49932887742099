// What torch asks of a device type: current device and streams, events, memory, random generators.

#include "device.h"

#include <ATen/core/GeneratorForPrivateuseone.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/StorageImpl.h>

#include <cstdlib>
#include <set>

namespace toy {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

namespace {
constexpr auto kType = c10::DeviceType::PrivateUse1;

thread_local DeviceIndex current_device = 0;
thread_local std::vector<int64_t> current_streams;

int64_t& current_stream_id(int device) {
  if (current_streams.empty()) current_streams.assign(Machine::get().devices(), 0);
  return current_streams[device];
}

int device_count() {
  const char* said = std::getenv("TOY_DEVICES");
  return said ? std::atoi(said) : 4;
}

DeviceIndex checked(DeviceIndex device) {
  TORCH_CHECK(
      device >= 0 && device < Machine::get().devices(), "invalid device ordinal toy:", int(device), ": there are ",
      Machine::get().devices());
  return device;
}
}  // namespace

Machine& Machine::get() {
  static Machine* machine = new Machine(device_count());  // it outlives all tensors
  return *machine;
}

DeviceIndex device_now() { return current_device; }

int lane_now(DeviceIndex device) { return Machine::get().lane_of(device, current_stream_id(device)); }

int lane_of(const Stream& stream) { return Machine::get().lane_of(stream.device_index(), stream.id()); }

// --- memory

Memory memory_of(const c10::Storage& storage) {
  auto* held = static_cast<Memory*>(storage.data_ptr().get_context());
  return held ? *held : nullptr;
}

namespace {
void let_go(void* context) {
  auto* held = static_cast<Memory*>(context);
  if (!held) return;
  Machine::get().free(*held);
  delete held;
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    DeviceIndex device = current_device;
    if (!bytes) return {nullptr, nullptr, &let_go, Device(kType, device)};
    Memory memory = Machine::get().allocate(device, lane_now(device), bytes);
    auto now = Machine::get().statistics(device);
    TORCH_CHECK_WITH(
        OutOfMemoryError, memory, "toy:", int(device), " is out of memory: ", bytes, " bytes are asked for, ",
        now.taken_bytes, " of ", now.limit_bytes, " are in use");
    void* data = memory->data;
    return {data, new Memory(std::move(memory)), &let_go, Device(kType, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& pointer, Stream stream) override {
    auto* held = static_cast<Memory*>(pointer.get_context());
    if (held) Machine::get().use(*held, lane_of(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    auto now = Machine::get().statistics(checked(device));
    c10::CachingDeviceAllocator::DeviceStats found;
    found.allocated_bytes[0].current = int64_t(now.allocated_bytes);
    found.allocated_bytes[0].peak = int64_t(now.peak_bytes);
    found.reserved_bytes[0].current = int64_t(now.taken_bytes);
    return found;
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex device) override { Machine::get().restart_peak(checked(device)); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    auto now = Machine::get().statistics(checked(device));
    size_t all = std::min(now.limit_bytes, size_t(1) << 40);
    return {all - now.taken_bytes, all};
  }
};
Allocator allocator;
REGISTER_ALLOCATOR(kType, &allocator);

// Pinned host memory: a device may read it, or write it, after the host has gone on.
struct PinnedAllocator final : c10::Allocator {
  std::mutex lock;
  std::map<const char*, size_t> sizes;

  c10::DataPtr allocate(size_t bytes) override;
  bool holds(const void* data) {
    std::lock_guard<std::mutex> guard(lock);
    auto after = sizes.upper_bound(static_cast<const char*>(data));
    if (after == sizes.begin()) return false;
    --after;
    return static_cast<const char*>(data) < after->first + after->second;
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
};
PinnedAllocator pinned;

// Never given back: a copy that is late may still read it. (CUDA's host allocator waits for events.)
c10::DataPtr PinnedAllocator::allocate(size_t bytes) {
  std::lock_guard<std::mutex> guard(lock);
  auto* data = static_cast<char*>(std::aligned_alloc(kRounding, (bytes / kRounding + 1) * kRounding));
  sizes[data] = bytes / kRounding * kRounding + kRounding;
  return {data, data, [](void*) {}, Device(c10::DeviceType::CPU)};
}
}  // namespace

bool is_pinned(const void* data) { return pinned.holds(data); }

// --- random numbers: which come next is decided when a kernel is put on a stream, as on a GPU

namespace {
std::vector<at::Generator>& default_generators() {
  static auto* all = [] {
    auto* made = new std::vector<at::Generator>();
    for (int device = 0; device < Machine::get().devices(); device++)
      made->push_back(at::make_generator<Generator>(DeviceIndex(device)));
    return made;
  }();
  return *all;
}
}  // namespace

Generator::Generator(DeviceIndex device)
    : c10::GeneratorImpl(Device(kType, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

uint64_t Generator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

c10::intrusive_ptr<c10::TensorImpl> Generator::get_state() const {
  auto state = at::detail::empty_cpu({16}, at::kByte, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
  auto* words = static_cast<uint64_t*>(state.mutable_data_ptr());
  words[0] = seed_;
  words[1] = offset_;
  return state.getIntrusivePtr();
}

void Generator::set_state(const c10::TensorImpl& state) {
  TORCH_CHECK(state.numel() == 16 && state.device().is_cpu(), "no state of a generator of toy");
  auto* words = static_cast<const uint64_t*>(state.data());
  seed_ = words[0];
  offset_ = words[1];
}

Generator* Generator::clone_impl() const {
  auto* made = new Generator(device_.index());
  made->seed_ = seed_;
  made->offset_ = offset_;
  return made;
}

const at::Generator& default_generator(DeviceIndex device) {
  return default_generators()[checked(device < 0 ? current_device : device)];
}

// --- devices, streams, events

namespace {
Event* event_of(void* event) { return static_cast<Event*>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  Device exchangeDevice(Device device) const override {
    Device before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return Device(kType, current_device); }
  void setDevice(Device device) const override { current_device = checked(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override { current_device = device.index(); }
  DeviceIndex deviceCount() const noexcept override { return DeviceIndex(Machine::get().devices()); }

  Stream getStream(Device device) const override {
    DeviceIndex index = device.has_index() ? device.index() : current_device;
    return Stream(Stream::UNSAFE, Device(kType, index), current_stream_id(checked(index)));
  }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::UNSAFE, device, 0); }
  Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  Stream getNewStream(Device device, int) const override {
    DeviceIndex index = device.has_index() ? device.index() : current_device;
    return Stream(Stream::UNSAFE, Device(kType, index), Machine::get().stream_from_pool(checked(index)));
  }
  Stream exchangeStream(Stream stream) const override {
    Stream before = getStream(stream.device());
    current_stream_id(stream.device_index()) = stream.id();
    return before;
  }
  bool queryStream(const Stream& stream) const override {
    return Machine::get().happened(Machine::get().record(lane_of(stream)));
  }
  void synchronizeStream(const Stream& stream) const override {
    Machine::get().host_waits(Machine::get().record(lane_of(stream)), "stream.synchronize");
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    Machine::get().host_waits_for_device(checked(device), "synchronize");
  }

  void record(void** event, const Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    if (!*event) *event = new Event();
    *event_of(*event) = Machine::get().record(lane_of(stream));
  }
  void block(void* event, const Stream& stream) const override {
    if (event) Machine::get().wait(lane_of(stream), *event_of(event));
  }
  bool queryEvent(void* event) const override {
    return !event || Machine::get().happened(*event_of(event));
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete event_of(event); }
  void synchronizeEvent(void* event) const override {
    if (event) Machine::get().host_waits(*event_of(event), "event.synchronize");
  }
  double elapsedTime(void* first, void* last, const DeviceIndex) const override {
    TORCH_CHECK(queryEvent(first) && queryEvent(last), "an event has not happened yet");
    return (event_of(last)->time_s - event_of(first)->time_s) * 1e3;
  }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const Stream& stream) const override {
    allocator.recordStream(pointer, stream);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return DeviceIndex(Machine::get().devices()); }
  void setCurrentDevice(DeviceIndex device) const override { current_device = checked(device); }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    DeviceIndex before = current_device;
    current_device = checked(device);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device < 0 ? current_device : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return at::make_generator<Generator>(checked(device < 0 ? current_device : device));
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  at::Device getDeviceFromPtr(void*) const override { return Device(kType, current_device); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};
const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();
}  // namespace
}  // namespace toy

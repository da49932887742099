// What torch finds under the device type: views, copies, and the few operators that are not the CPU's.

#include "kernels.h"

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace toy {

using at::Tensor;

namespace {
// --- memory

at::Device device_asked(std::optional<at::Device> device) {
  at::Device asked = device.value_or(at::Device(at::kPrivateUse1));
  if (!asked.has_index()) asked.set_index(device_now());
  return asked;
}

Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device_asked(device));
  return at::detail::empty_generic(
      size, c10::GetAllocator(c10::kPrivateUse1), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  return new_tensor(size, stride, c10::dtype_or_default(dtype), device_asked(device));
}

const Tensor& resize_(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto meta = at::detail::empty_meta(size, self.scalar_type(), format);
  size_t bytes = at::detail::computeStorageNbytes(
      size, meta.strides(), self.dtype().itemsize(), size_t(self.storage_offset()));
  if (bytes > self.storage().nbytes()) resize_storage(self.storage(), bytes);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, meta.strides());
  return self;
}

Tensor& set_nothing(Tensor& self) {
  c10::DeviceGuard guard(self.device());
  at::Storage nothing(at::Storage::use_byte_size_t(), 0, c10::GetAllocator(c10::kPrivateUse1), true);
  return at::native::set_storage_cpu_(self, nothing, 0, {0}, {});
}

void record_stream(Tensor& self, c10::Stream stream) {
  if (Memory memory = memory_of(self.storage())) Machine::get().use(memory, lane_of(stream));
}

// --- copies

std::vector<Use> use(const Tensor& tensor, bool writes) {
  Memory memory = memory_of(tensor.storage());
  return memory ? std::vector<Use>{{memory, writes}} : std::vector<Use>{};
}

std::function<void()> copying(Tensor target, Tensor source, std::vector<Use> uses) {
  return [target, source, uses] {
    c10::impl::ExcludeDispatchKeyGuard guard(
        c10::autograd_dispatch_keyset_with_ADInplaceOrView |
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
    target.copy_(source);
  };
}

// Between two devices: as CUDA does it, on the source's current stream, which waits for the target's, and
// which the target's waits for.
void copy_between_devices(const Tensor& source, const Tensor& target) {
  Machine& machine = Machine::get();
  int from = lane_now(source.device().index()), to = lane_now(target.device().index());
  std::vector<Use> uses = use(source, false);
  for (const Use& one : use(target, true))
    if (uses.empty() || one.memory != uses[0].memory)
      uses.push_back(one);
    else
      uses[0].writes = true;
  if (from != to) machine.wait(from, machine.record(to));
  double seconds = machine.copy_s(source.device().index(), target.device().index(), target.nbytes());
  machine.submit(from, "copy", uses, copying(on_host(target), on_host(source), uses), seconds);
  if (from != to) machine.wait(to, machine.record(from));
}

// From the host: what is not pinned is read at once; what is pinned is read when the copy runs.
void copy_from_host(const Tensor& source, const Tensor& target, bool non_blocking) {
  bool late = non_blocking && is_pinned(source.data_ptr());
  Tensor read = late ? source.detach() : source.detach().clone();
  if (late) read = on_host(read);
  std::vector<Use> uses = use(target, true);
  int lane = lane_now(target.device().index());
  double seconds = Machine::get().copy_s(-1, target.device().index(), target.nbytes());
  Machine::get().submit(lane, "copy from host", uses, copying(on_host(target), read, uses), seconds);
  if (!non_blocking) Machine::get().host_waits(Machine::get().record(lane), "copy from host");
}

// To the host: complete when the call returns, unless it goes to pinned memory and need not be.
void copy_to_host(const Tensor& source, const Tensor& target, bool non_blocking) {
  Tensor written = on_host(target);
  std::vector<Use> uses = use(source, false);
  int lane = lane_now(source.device().index());
  double seconds = Machine::get().copy_s(source.device().index(), -1, target.nbytes());
  Machine::get().submit(lane, "copy to host", uses, copying(written, on_host(source), uses), seconds);
  if (!non_blocking || !is_pinned(target.data_ptr()))
    Machine::get().host_waits(Machine::get().record(lane), "copy to host");
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool non_blocking) {
  if (!target.numel()) return target;
  if (source.is_privateuseone() && target.is_privateuseone())
    copy_between_devices(source, target);
  else if (target.is_privateuseone())
    copy_from_host(source, target, non_blocking);
  else
    copy_to_host(source, target, non_blocking);
  return target;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  Tensor value = at::empty({}, self.options().device(at::kCPU));
  copy_to_host(self.reshape({}), value, false);
  return value.item();
}

// --- operators that torch calls on devices only

void convolution(const c10::OperatorHandle&, Stack* stack) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  fallback(op, stack);
}

void convolution_backward(const c10::OperatorHandle&, Stack* stack) {
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  constexpr long kArguments = 10, kBiasSizes = 3;
  auto first = stack->end() - kArguments;
  std::vector<int64_t> bias_sizes = {first->toTensor().size(1)};
  stack->insert(first + kBiasSizes, at::IValue(bias_sizes));
  fallback(op, stack);
}

int64_t attention_kernel(
    const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
    std::optional<double>, bool) {
  return 0;  // written out, in matrix products and a softmax
}
}  // namespace

void resize_storage(const c10::Storage& storage, size_t bytes) {
  c10::DeviceGuard guard(storage.device());
  Memory before = memory_of(storage);
  auto* own = storage.unsafeGetStorageImpl();
  c10::DataPtr data = c10::GetAllocator(c10::kPrivateUse1)->allocate(bytes);
  auto* held = static_cast<Memory*>(data.get_context());
  size_t kept = std::min(bytes, own->nbytes());
  if (before && held && kept) {
    Memory after = *held;
    Machine::get().submit(
        lane_now(storage.device().index()), "resize", {{before, false}, {after, true}},
        [before, after, kept] { std::memcpy(after->data, before->data, kept); });
  }
  own->set_data_ptr_noswap(std::move(data));
  own->set_nbytes(bytes);
}

using c10::DispatchKey;
using torch::CppFunction;

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_);
  m.impl("set_", &set_nothing);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_.source_Storage", &at::native::set_);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("record_stream", &record_stream);
  m.impl("mse_loss", CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("smooth_l1_loss", CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("_fused_sdp_choice", &attention_kernel);
  m.impl("convolution_overrideable", CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable", CppFunction::makeFromBoxedFunction<&convolution_backward>());
}

TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  using namespace at::autocast;
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
}

void set_times(
    double launch_s, double kernel_s, double bytes_per_s, std::vector<std::string> kernels,
    std::vector<double> kernels_s, std::vector<int64_t> sources, std::vector<int64_t> targets,
    std::vector<double> latencies_s, std::vector<double> rates) {
  Times times{launch_s, kernel_s, bytes_per_s, {}, {}};
  for (size_t i = 0; i < kernels.size(); i++) times.kernels[kernels[i]] = kernels_s.at(i);
  for (size_t i = 0; i < sources.size(); i++)
    times.links[{int(sources[i]), int(targets.at(i))}] = {latencies_s.at(i), rates.at(i)};
  Machine::get().set_times(std::move(times));
}

TORCH_LIBRARY(toy, m) {
  m.def("restart(int seed, bool late) -> ()", [](int64_t seed, bool late) {
    Machine::get().restart(uint64_t(seed), late);
  });
  m.def("devices() -> int", [] { return int64_t(Machine::get().devices()); });
  m.def("faults() -> str[]", [] { return Machine::get().faults(); });
  m.def("waits() -> str[]", [] { return Machine::get().waits(); });
  m.def("issued() -> str[]", [] { return Machine::get().issued(); });
  m.def("keep_issued(bool on) -> ()", [](bool on) { Machine::get().keep_issued(on); });
  m.def("unforeseen() -> Dict(str, str)", [] {
    c10::Dict<std::string, std::string> made;
    for (auto& entry : unforeseen()) made.insert(entry.first, entry.second);
    return made;
  });
  m.def("limit(int device, int size_bytes) -> ()", [](int64_t device, int64_t bytes) {
    Machine::get().limit(int(device), bytes < 0 ? SIZE_MAX : size_t(bytes));
  });
  m.def(
      "set_times(float launch_s, float kernel_s, float bytes_per_s, str[] kernels, float[] kernels_s, "
      "int[] sources, int[] targets, float[] latencies_s, float[] rates) -> ()",
      &set_times);
  m.def("host_s() -> float", [] { return Machine::get().host_s(); });
  m.def("host_spends(float seconds) -> ()", [](double seconds) { Machine::get().host_spends(seconds); });
  m.def("sleep(float seconds) -> ()", [](double seconds) {  // a kernel of the current device that only takes time
    Machine::get().submit(lane_now(device_now()), "sleep", {}, [] {}, seconds);
  });
  m.def("rng_state(int device) -> Tensor", [](int64_t device) {
    return Tensor(default_generator(c10::DeviceIndex(device)).unsafeGetGeneratorImpl()->get_state());
  });
  m.def("set_rng_state(int device, Tensor state) -> ()", [](int64_t device, const Tensor& state) {
    default_generator(c10::DeviceIndex(device)).unsafeGetGeneratorImpl()->set_state(*state.unsafeGetTensorImpl());
  });
  m.def("seed(int device, int seed) -> ()", [](int64_t device, int64_t seed) {
    default_generator(c10::DeviceIndex(device)).unsafeGetGeneratorImpl()->set_current_seed(uint64_t(seed));
  });
  m.def("unguarded_add_(Tensor(a!) self, float value) -> Tensor(a!)");
}

// A kernel whose author forgot the device guard, as hand-written ones do: it goes to the current device.
Tensor& unguarded_add_(Tensor& self, double value) {
  std::vector<Use> uses = use(self, true);
  Tensor target = on_host(self);
  Machine::get().submit(
      lane_now(device_now()), "unguarded_add", uses, [target, value, uses]() mutable { target.add_(value); });
  return self;
}

TORCH_LIBRARY_IMPL(toy, PrivateUse1, m) { m.impl("unguarded_add_", &unguarded_add_); }

}  // namespace toy

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &toy::attention_kernel)
}

// Kernels of the test accelerator: the CPU's, put on a stream. Shapes come from torch's meta kernels, so that
// the host can go on; what has none (a `nonzero`) makes the host wait, as it does on a GPU.

#include "kernels.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <unordered_map>

namespace toy {

using at::IValue;
using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;

namespace {
std::mutex unforeseen_lock;
std::map<std::string, std::string> unforeseen_kernels;

// What else torch would do around a kernel, and shall not do here: autograd, autocast, modes.
const DispatchKeySet kAround = c10::autograd_dispatch_keyset_with_ADInplaceOrView |
    c10::autocast_dispatch_keyset |
    DispatchKeySet(
        {DispatchKey::Python, DispatchKey::PythonTLSSnapshot, DispatchKey::PythonDispatcher,
         DispatchKey::Functionalize, DispatchKey::FuncTorchDynamicLayerFrontMode,
         DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::FuncTorchBatched,
         DispatchKey::FuncTorchVmapMode, DispatchKey::FuncTorchGradWrapper, DispatchKey::PreDispatch});

void call(const c10::OperatorHandle& op, DispatchKey key, Stack& stack) {
  c10::impl::ForceDispatchKeyGuard guard(DispatchKeySet(DispatchKey::BackendSelect), kAround);
  op.redispatchBoxed(DispatchKeySet(key), &stack);
}

// The same value with other tensors in it; a tensor that occurs twice becomes one.
class Swap {
 public:
  explicit Swap(std::function<Tensor(const Tensor&)> change) : change_(std::move(change)) {}

  Tensor tensor(const Tensor& old) {
    if (!old.defined()) return old;
    auto [found, is_new] = made_.try_emplace(old.unsafeGetTensorImpl());
    if (is_new) found->second = change_(old);
    return found->second;
  }
  IValue value(const IValue& old) {
    if (old.isTensor()) return tensor(old.toTensor());
    if (old.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& one : old.toTensorVector()) list.push_back(tensor(one));
      return list;
    }
    if (old.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& one : old.toOptionalTensorVector())
        list.push_back(one ? std::optional<Tensor>(tensor(*one)) : std::nullopt);
      return list;
    }
    return old;
  }
  Stack stack(const Stack& old) {
    Stack made;
    for (const IValue& one : old) made.push_back(value(one));
    return made;
  }

 private:
  std::function<Tensor(const Tensor&)> change_;
  std::unordered_map<at::TensorImpl*, Tensor> made_;
};

void each_tensor(const IValue& value, const std::function<void(const Tensor&)>& visit) {
  Swap([&](const Tensor& tensor) { return visit(tensor), tensor; }).value(value);
}

Tensor like(const Tensor& tensor, c10::Device device) {
  if (device.is_meta())
    return Tensor(at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type()));
  return new_tensor(tensor.sizes(), tensor.strides(), tensor.scalar_type(), device);
}

// A tensor of the CPU's over a device's memory; one of the host is copied, as a launch copies its arguments.
Tensor over(const Tensor& tensor) {
  if (tensor.is_privateuseone()) return on_host(tensor);
  Tensor copied = tensor.detach().clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
    copied.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copied;
}

bool may_lie_on_host(const std::string& name, const Tensor& tensor) {
  return tensor.dim() == 0 || name == "indices" || name == "lengths" || name == "batch_sizes";
}

bool is_write(const c10::FunctionSchema& schema, size_t index) {
  static const std::set<std::string> unsaid = {"aten::native_batch_norm"};  // and its schema does not say so
  const auto& argument = schema.arguments()[index];
  if (argument.alias_info() && argument.alias_info()->isWrite()) return true;
  return unsaid.count(schema.name()) && argument.name().rfind("running_", 0) == 0;
}

c10::Device device_of(const c10::FunctionSchema& schema, const Stack& args) {
  std::optional<c10::Device> found;
  for (size_t index = 0; index < args.size(); index++) {
    const std::string& name = schema.arguments()[index].name();
    if (!found && args[index].isDevice()) found = args[index].toDevice();
    each_tensor(args[index], [&](const Tensor& tensor) {
      if (tensor.is_privateuseone()) {
        if (!found) found = tensor.device();
        TORCH_CHECK(
            *found == tensor.device(), "Expected all tensors to be on the same device, but got ", name, " is on ",
            tensor.device(), ", different from other tensors on ", *found, " (", schema.name(), ")");
      }
    });
  }
  c10::Device device = found.value_or(c10::Device(c10::kPrivateUse1, device_now()));
  if (!device.has_index()) device.set_index(device_now());
  for (size_t index = 0; index < args.size(); index++) {
    const std::string& name = schema.arguments()[index].name();
    each_tensor(args[index], [&](const Tensor& tensor) {
      TORCH_CHECK(
          tensor.is_privateuseone() || (may_lie_on_host(name, tensor) && !is_write(schema, index)),
          "Expected all tensors to be on the same device, but got ", name, " is on ", tensor.device(),
          ", different from other tensors on ", device, " (", schema.name(), ")");
    });
  }
  return device;
}

std::vector<Use> uses_of(const c10::FunctionSchema& schema, const Stack& args) {
  std::map<Block*, Use> uses;
  for (size_t index = 0; index < args.size(); index++)
    each_tensor(args[index], [&](const Tensor& tensor) {
      Memory memory = tensor.is_privateuseone() ? memory_of(tensor.storage()) : nullptr;
      if (!memory) return;
      Use& use = uses.try_emplace(memory.get(), Use{memory, false}).first->second;
      use.writes |= is_write(schema, index);
    });
  std::vector<Use> list;
  for (auto& entry : uses) list.push_back(entry.second);
  return list;
}

// The draw is taken now; when the kernel runs makes no difference to its numbers.
struct Draw {
  std::optional<uint64_t> for_default;  // the kernel takes the CPU's own generator, which is set for it

  Draw(const c10::OperatorHandle& op, c10::Device device, Stack& args) {
    const auto& arguments = op.schema().arguments();
    if (!op.hasTag(at::Tag::nondeterministic_seeded)) return;
    for (size_t index = 0; index < args.size(); index++)
      if (arguments[index].type()->str().rfind("Generator", 0) == 0) {
        args[index] = at::detail::createCPUGenerator(next(args[index], device));
        return;
      }
    for_default = next(IValue(), device);
  }

  void run(const c10::OperatorHandle& op, Stack& stack) const {
    if (!for_default) return call(op, DispatchKey::CPU, stack);
    auto generator = at::detail::getDefaultCPUGenerator();
    auto before = generator.get_state();
    generator.set_current_seed(*for_default);
    call(op, DispatchKey::CPU, stack);
    generator.set_state(before);
  }

 private:
  static uint64_t next(const IValue& given, c10::Device device) {
    at::Generator generator = given.isNone() ? default_generator(device.index()) : given.toGenerator();
    TORCH_CHECK(
        generator.device().is_privateuseone(), "Expected a 'toy' device type for generator but found '",
        generator.device().type(), "'");
    return generator.get<Generator>()->next_draw();
  }
};

void resize(const Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (tensor.sizes() == sizes) return;
  size_t bytes = at::detail::computeStorageNbytes(
      sizes, strides, tensor.dtype().itemsize(), size_t(tensor.storage_offset()));
  if (bytes > tensor.storage().nbytes()) resize_storage(tensor.storage(), bytes);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
}

// What a kernel returns: the tensors that it was given to write, or new ones like the foreseen.
Stack outputs_of(
    const c10::FunctionSchema& schema, const Stack& args, const Stack& seen_args, const Stack& seen,
    c10::Device device) {
  std::unordered_map<at::TensorImpl*, Tensor> given;
  for (size_t index = 0; index < args.size(); index++) {
    std::vector<Tensor> real, meta;
    each_tensor(args[index], [&](const Tensor& tensor) { real.push_back(tensor); });
    each_tensor(seen_args[index], [&](const Tensor& tensor) { meta.push_back(tensor); });
    for (size_t i = 0; i < real.size() && i < meta.size(); i++) {
      given[meta[i].unsafeGetTensorImpl()] = real[i];
      if (is_write(schema, index)) resize(real[i], meta[i].sizes(), meta[i].strides());
    }
  }
  return Swap([&](const Tensor& tensor) {
           auto found = given.find(tensor.unsafeGetTensorImpl());
           return found == given.end() ? like(tensor, device) : found->second;
         }).stack(seen);
}

void fill(const std::string& name, const Stack& targets, const Stack& sources) {
  std::vector<Tensor> to, from;
  for (size_t index = 0; index < targets.size(); index++) {
    const IValue& source = sources[index];
    if (source.isTensor() && !source.toTensor().defined()) continue;  // a gradient that nothing asked for
    each_tensor(targets[index], [&](const Tensor& tensor) { to.push_back(tensor); });
    each_tensor(source, [&](const Tensor& tensor) { from.push_back(tensor); });
  }
  TORCH_CHECK(to.size() == from.size(), name, " returns another number of results than foreseen");
  for (size_t index = 0; index < to.size(); index++) {
    bool unused = !from[index].numel();  // statistics that the CPU does not keep in evaluation
    if (unused || to[index].is_same(from[index])) continue;
    TORCH_CHECK(
        to[index].sizes() == from[index].sizes(), name, " returns ", from[index].sizes(), ", foreseen was ",
        to[index].sizes());
    c10::impl::ForceDispatchKeyGuard guard(DispatchKeySet(DispatchKey::BackendSelect), kAround);
    to[index].copy_(from[index]);
  }
}

std::vector<Use> and_writes(std::vector<Use> uses, const Stack& outputs) {
  for (const IValue& value : outputs)
    each_tensor(value, [&](const Tensor& tensor) {
      Memory memory = memory_of(tensor.storage());
      for (Use& use : uses)
        if (use.memory == memory) return;  // it was given
      if (memory) uses.push_back({memory, true});
    });
  return uses;
}

// The host waits for what the kernel is made of, and runs it.
Stack run_now(const c10::OperatorHandle& op, const Stack& args, c10::Device device) {
  const std::string& name = op.schema().name();
  Machine& machine = Machine::get();
  int lane = lane_now(device.index());
  machine.submit(lane, name, uses_of(op.schema(), args), [] {});
  machine.host_waits(machine.record(lane), name);
  Swap swap(over);
  Stack host_args = swap.stack(args), results = host_args;
  Draw(op, device, results).run(op, results);
  Stack outputs = outputs_of(op.schema(), args, host_args, results, device);
  Stack targets = Swap([&](const Tensor& tensor) { return swap.tensor(tensor); }).stack(outputs);
  auto uses = and_writes({}, outputs);
  machine.submit(lane, name, uses, [name, targets, results, uses] { fill(name, targets, results); });
  return outputs;
}

bool unlike_meta(const std::string& name) { return name.rfind("aten::_embedding_bag", 0) == 0; }

bool returns_tensors(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    auto type = result.type();
    if (!type->isSubtypeOf(*c10::TensorType::get()) && !type->isSubtypeOf(*c10::ListType::ofTensors())) return false;
  }
  return true;
}
}  // namespace

Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, c10::Device device) {
  c10::DeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      sizes, strides, c10::GetAllocator(c10::kPrivateUse1), DispatchKeySet(DispatchKey::PrivateUse1), dtype);
}

Tensor on_host(const Tensor& tensor) {
  c10::impl::ForceDispatchKeyGuard guard(DispatchKeySet(DispatchKey::BackendSelect), kAround);
  void* data = tensor.numel() ? tensor.data_ptr() : nullptr;
  Tensor host = at::from_blob(data, tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  host._set_conj(tensor.is_conj());
  host._set_neg(tensor.is_neg());
  return host;
}

Stack launch(const c10::OperatorHandle& op, const Stack& args, c10::Device device) {
  Swap to_meta([](const Tensor& tensor) {
    bool is_number = tensor.is_cpu() && tensor.dim() == 0;  // kernels of all devices take these as they are
    return is_number ? tensor : like(tensor, c10::Device(c10::kMeta));
  });
  Stack seen_args = to_meta.stack(args);
  for (IValue& value : seen_args) {
    if (value.isDevice()) value = c10::Device(c10::kMeta);
    if (value.isGenerator()) value = IValue();
  }
  Stack seen = seen_args;
  try {
    TORCH_CHECK(returns_tensors(op.schema()), "it returns values");
    TORCH_CHECK(!unlike_meta(op.schema().name()), "its meta kernel foresees what CUDA's returns");
    call(op, DispatchKey::Meta, seen);
  } catch (const std::exception& error) {
    std::lock_guard<std::mutex> guard(unforeseen_lock);
    std::string what = error.what();
    unforeseen_kernels[toString(op.operator_name())] = what.substr(0, what.find('\n'));
    seen.clear();
  }
  if (seen.empty() && !op.schema().returns().empty()) return run_now(op, args, device);
  Stack outputs = outputs_of(op.schema(), args, seen_args, seen, device);
  Swap to_host(over);
  Stack host_args = to_host.stack(args), targets = to_host.stack(outputs);
  for (IValue& value : host_args)
    if (value.isDevice()) value = c10::Device(c10::kCPU);
  Draw draw(op, device, host_args);
  std::vector<Use> uses = and_writes(uses_of(op.schema(), args), outputs);
  auto run = [op, host_args, targets, uses, draw] {
    Stack stack = host_args;
    draw.run(op, stack);
    fill(op.schema().name(), targets, stack);
  };
  Machine::get().submit(lane_now(device.index()), op.schema().name(), uses, std::move(run));
  return outputs;
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  size_t count = op.schema().arguments().size();
  Stack args(stack->end() - long(count), stack->end());
  stack->erase(stack->end() - long(count), stack->end());
  for (IValue& one : launch(op, args, device_of(op.schema(), args))) stack->push_back(std::move(one));
}

std::map<std::string, std::string> unforeseen() {
  std::lock_guard<std::mutex> guard(unforeseen_lock);
  return unforeseen_kernels;
}

}  // namespace toy

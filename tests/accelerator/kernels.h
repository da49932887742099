// Putting kernels of the CPU on a stream.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "device.h"

namespace toy {

using torch::jit::Stack;

at::Tensor new_tensor(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, c10::Device device);

// A tensor of the CPU's over the same memory. Only a task may look at what is in it.
at::Tensor on_host(const at::Tensor& tensor);

// Puts a kernel on the current stream of a device. Returns what it will have made.
Stack launch(const c10::OperatorHandle& op, const Stack& args, c10::Device device);

// The same for any operator that has no kernel of its own here.
void fallback(const c10::OperatorHandle& op, Stack* stack);

// Kernels whose results only running them could tell, and why: the host waited for them.
std::map<std::string, std::string> unforeseen();

}  // namespace toy

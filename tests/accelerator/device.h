// What kernels have to know of the device: where they run, on which memory, with which random numbers.

#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include "machine.h"

namespace toy {

c10::DeviceIndex device_now();
int lane_now(c10::DeviceIndex device);     // the stream on which this thread computes there
int lane_of(const c10::Stream& stream);
Memory memory_of(const c10::Storage& storage);  // null if it holds nothing
bool is_pinned(const void* data);
void resize_storage(const c10::Storage& storage, size_t bytes);

// Counts draws: the n-th draw after a seed has random numbers of its own, wherever and whenever it runs.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(c10::DeviceIndex device);
  void set_current_seed(uint64_t seed) override { seed_ = seed, offset_ = 0; }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  uint64_t next_draw() { return seed_ * 1'000'003 + offset_++; }

 private:
  Generator* clone_impl() const override;
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

const at::Generator& default_generator(c10::DeviceIndex device);

}  // namespace toy

// TPU kernels of causal attention: found in a cache of the user, or made by a child that runs JAX where JAX is installed.
//
// A kernel depends on the shapes of one device, on block lengths and on the versions of JAX, and these are its file's name:
// $FLAMBEAU_CACHE (or $XDG_CACHE_HOME/flambeau, ~/.cache/flambeau) /tpu_attention/. Files appear whole. What is read is checked as what
// comes from outside: a file that does not describe kernels of this shape is made anew.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/dtype.h"
#include "device/causal_attention.h"

namespace flambeau::device {

struct FlashShape {
  int64_t batch = 0, heads = 0, kv_heads = 0, length = 0, head_dim = 0;  // of one device
  DType dtype = DType::BF16;
  bool documents = false;
  AttentionBlocks blocks = {};
};

inline constexpr int kFlashKernelsFormat = 2;  // of a file; python/flambeau/tpu_attention.py has it too

// Descriptions as ops/flash_attention.h takes them.
struct FlashKernels {
  std::string forward, dq, dkv;
};

// Null where there are none: `why` says then why, in one line. Remembers answers, also that there are none.
std::shared_ptr<const FlashKernels> flash_kernels(const FlashShape& shape, std::string& why);

}  // namespace flambeau::device

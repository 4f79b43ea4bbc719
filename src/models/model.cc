#include "models/model.h"

#include "nn/linear.h"
#include "spmd/sharding.h"

namespace flambeau::models {

at::Tensor Model::forward(const Inputs& inputs, at::ScalarType compute, const Probe& probe) const {
  const at::Tensor logits_BSV = spmd::shard_hint(nn::linear(hidden(inputs, compute, probe), head()), {"batch", "sequence", "vocab"});
  if (probe) probe("lm_head", logits_BSV);
  return logits_BSV;
}

}  // namespace flambeau::models

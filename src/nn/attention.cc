#include "nn/attention.h"

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "base/log.h"
#include "device/device.h"
#include "device/own_ops.h"
#include "kernels/registry.h"
#include "spmd/manual.h"
#include "spmd/sharding_rules.h"

namespace flambeau::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Tensors = std::vector<at::Tensor>;

// CPUs are as fast either way on rows up to here; at 2048 tokens the loop takes less than half of the time. Their caches want smaller
// blocks than matrix units do.
constexpr int64_t kLongestDenseOnCpu = 256, kCpuBlock = 128;

AttentionOptions choose(AttentionOptions options, const at::Tensor& tokens_BS) {
  const targets::Target* target = device::is_tpu(tokens_BS) ? &runtime::Engine::get().target() : nullptr;
  const bool is_cpu = target && target->is_cpu(), is_tpu = target && target->is_tpu();
  if (options.kind == AttentionKind::Flash && !is_tpu) {
    raise<InvalidArgument>("[model.attention] expected a TPU for flash attention, got {}; set model.attention = \"chunked\", or auto",
                           target ? target->platform : "PyTorch on the CPU");
  }
  if (!target) return {.kind = AttentionKind::Dense, .blocks = {}, .chosen = true, .use = options.use};
  if (options.kind == AttentionKind::Auto) {
    options.chosen = true;
    options.kind = is_tpu                                                   ? AttentionKind::Flash
                   : is_cpu && tokens_BS.size(1) <= kLongestDenseOnCpu ? AttentionKind::Dense
                                                                            : AttentionKind::Chunked;
  }
  if (is_cpu && options.blocks.q == 0) options.blocks.q = kCpuBlock;
  if (is_cpu && options.blocks.kv == 0) options.blocks.kv = kCpuBlock;
  return options;
}

// Which keys a query may see, [B, 1, S, S].
at::Tensor document_mask(const at::Tensor& documents_BS) {
  const at::Tensor positions = at::arange(documents_BS.size(1), documents_BS.options().dtype(at::kLong));
  const at::Tensor causal_SS = positions.unsqueeze(1) >= positions.unsqueeze(0);
  const at::Tensor same_BSS = documents_BS.unsqueeze(2) == documents_BS.unsqueeze(1);
  return same_BSS.logical_and(causal_SS).unsqueeze(1);
}

at::Tensor dense(const at::Tensor& q_BHSE, const at::Tensor& k_BKSE, const at::Tensor& v_BKSE, const at::Tensor& mask) {
  const bool causal = !mask.defined();
  return at::scaled_dot_product_attention(q_BHSE, k_BKSE, v_BKSE, causal ? std::nullopt : std::make_optional(mask), /*dropout_p=*/0.0,
                                          causal, /*scale=*/1.0, /*enable_gqa=*/q_BHSE.size(1) != k_BKSE.size(1));
}

// How the tensors of an attention lie on a mesh: rows of the batch and whole key-value heads apart, the sequence whole.
struct Layout {
  hlo::Sharding heads, rows, documents;  // [B, H or K, S, E], [B, H, S], [B, S]

  explicit Layout(const at::Tensor& k_BKSE) {
    heads = spmd::sharding_rules()->sharding_where_it_divides({"batch", "kv_heads", "", ""}, k_BKSE.sizes().vec());
    rows.dims = {heads.dims[0], heads.dims[1], {}};
    documents.dims = {heads.dims[0], {}};
  }
};

using Placement = hlo::Sharding Layout::*;

// `body` of the local parts on a mesh, of the tensors themselves elsewhere. The partitioner would have to find out what the loop
// does with each dimension. Tensors are said with how they lie; undefined ones the body is given as they are.
Tensors on_own_part(const at::Tensor& k_BKSE, const std::vector<std::pair<at::Tensor, Placement>>& inputs,
                    const std::vector<Placement>& results, const std::function<Tensors(const Tensors&)>& body) {
  Tensors all, defined;
  for (const auto& [tensor, placement] : inputs) {
    all.push_back(tensor);
    if (tensor.defined()) defined.push_back(tensor);
  }
  if (!spmd::can_be_manual()) return body(all);
  const Layout layout(k_BKSE);
  std::vector<hlo::Sharding> in, out;
  for (const auto& [tensor, placement] : inputs)
    if (tensor.defined()) in.push_back(layout.*placement);
  for (const Placement placement : results) out.push_back(layout.*placement);
  return spmd::manual(defined, in, out, [&](const Tensors& parts) {
    Tensors local = all;
    size_t next = 0;
    for (at::Tensor& tensor : local)
      if (tensor.defined()) tensor = parts[next++];
    return body(local);
  });
}

// Where flash was asked for; where it was only the first choice, in the log for those who look.
void say_once(const std::string& why, bool asked) {
  static std::mutex mutex;
  static auto* said = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (!said->insert(why).second) return;
  if (asked) log_warning("attention is chunked instead of flash: {}; model.attention = \"chunked\" says so without this warning", why);
  else log_debug("attention is chunked instead of flash: {}", why);
}

// Of these parts of one device; null: chunked, the kernels' twin.
std::shared_ptr<const kernels::Calls> kernels_for(const at::Tensor& q, const at::Tensor& k, const at::Tensor& documents,
                                                  const AttentionOptions& options) {
  if (options.kind != AttentionKind::Flash) return nullptr;
  kernels::Answer answer{nullptr, "on a mesh the kernels run within captured steps only"};
  if (spmd::sharding_rules() == nullptr || spmd::inside_manual()) {
    const auto type = [](const at::Tensor& t) { return hlo::Type{device::dtype_of(t.scalar_type()), t.sizes().vec()}; };
    kernels::Request request{.name = "flash_attention", .operands = {type(q), type(k), type(k)}, .options = {options.blocks.q, options.blocks.kv}};
    if (documents.defined()) request.operands.push_back(type(documents));
    answer = kernels::find(request, runtime::Engine::get().target());
  }
  if (answer.calls) return answer.calls;
  *options.use = {.kind = AttentionKind::Chunked, .why_not_flash = answer.why_not};
  say_once(answer.why_not, !options.chosen);
  return nullptr;
}

Tensors forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& documents, const AttentionOptions& options) {
  const auto body = [&](const Tensors& t) -> Tensors {
    const auto calls = kernels_for(t[0], t[1], t[3], options);
    const auto results = calls ? device::flash_attention(t[0], t[1], t[2], t[3], calls->at("forward"), calls->at("dq"), calls->at("dkv"))
                               : device::causal_attention(t[0], t[1], t[2], t[3], options.blocks.q, options.blocks.kv);
    return {results[0], results[1]};
  };
  const Placement heads = &Layout::heads;
  return on_own_part(k, {{q, heads}, {k, heads}, {v, heads}, {documents, &Layout::documents}}, {heads, &Layout::rows}, body);
}

// `saved`: query, key, value, output, logsumexp, documents.
Tensors backward(const at::Tensor& gradient, const variable_list& saved, const AttentionOptions& options) {
  const auto body = [&](const Tensors& t) -> Tensors {
    const auto calls = kernels_for(t[1], t[2], t[6], options);
    const auto results =
        calls ? device::flash_attention_backward(t[0], t[1], t[2], t[3], t[6], t[4], t[5], calls->at("dq"), calls->at("dkv"))
              : device::causal_attention_backward(t[0], t[1], t[2], t[3], t[6], t[4], t[5], options.blocks.q, options.blocks.kv);
    return {results[0], results[1], results[2]};
  };
  const Placement heads = &Layout::heads;
  return on_own_part(saved[1], {{gradient, heads}, {saved[0], heads}, {saved[1], heads}, {saved[2], heads}, {saved[3], heads},
                                {saved[4], &Layout::rows}, {saved[5], &Layout::documents}}, {heads, heads, heads}, body);
}

// `documents` may be undefined, which no argument of a function that autograd sees may be.
struct Problem {
  at::Tensor documents;
  AttentionOptions options;
};

struct InBlocks : torch::autograd::Function<InBlocks> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Problem& problem) {
    const Tensors results = nn::forward(q, k, v, problem.documents, problem.options);
    ctx->save_for_backward({q, k, v, results[0], results[1], problem.documents});
    const auto& [kind, blocks, chosen, use] = problem.options;
    ctx->saved_data["options"] = std::vector<int64_t>{static_cast<int64_t>(kind), blocks.q, blocks.kv, chosen};
    return results[0];
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const std::vector<int64_t> options = ctx->saved_data["options"].toIntVector();
    Tensors results = nn::backward(gradients[0], ctx->get_saved_variables(),
                                   {.kind = static_cast<AttentionKind>(options[0]), .blocks = {.q = options[1], .kv = options[2]},
                                    .chosen = options[3] != 0});
    results.resize(4);
    return results;
  }
};

}  // namespace

std::string describe(const AttentionUse& use) {
  if (!use.why_not_flash.empty()) return "chunked instead of flash: " + use.why_not_flash;
  switch (use.kind) {
    case AttentionKind::Dense: return "dense";
    case AttentionKind::Chunked: return "chunked";
    case AttentionKind::Flash: return "flash";
    case AttentionKind::Auto: break;
  }
  return "not known before it runs";
}

Attention::Attention(const AttentionOptions& options, const at::Tensor& tokens_BS, const at::Tensor& documents_BS)
    : options_(choose(options, tokens_BS)) {
  *options_.use = {.kind = options_.kind, .why_not_flash = {}};
  if (!documents_BS.defined()) return;
  if (options_.kind == AttentionKind::Dense) mask_B1SS_ = document_mask(documents_BS);
  else documents_BS_ = documents_BS.to(at::kInt);
}

at::Tensor Attention::operator()(const at::Tensor& q_BHSE, const at::Tensor& k_BKSE, const at::Tensor& v_BKSE) const {
  const at::Tensor out_BHSE = options_.kind == AttentionKind::Dense
                                  ? dense(q_BHSE, k_BKSE, v_BKSE, mask_B1SS_)
                                  : InBlocks::apply(q_BHSE, k_BKSE, v_BKSE, Problem{documents_BS_, options_});
  return out_BHSE.transpose(1, 2);
}

}  // namespace flambeau::nn

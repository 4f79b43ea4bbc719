#include "train/step.h"

#include <cmath>
#include <numeric>
#include <span>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "device/scope.h"
#include "nn/loss.h"
#include "spmd/sharding_rules.h"

namespace flambeau::train {
namespace {

using Tensors = std::vector<at::Tensor>;

// Positions of a batch's parts in the list of a program's inputs.
constexpr size_t kTokens = 0, kLabels = 1, kPositions = 2, kDocuments = 3;

size_t batch_inputs(const StepOptions& options) { return options.documents ? 4 : 2; }

models::Inputs model_inputs(const Tensors& batch, bool documents) {
  if (!documents) return {batch[kTokens], {}, {}};
  return {batch[kTokens], batch[kPositions], batch[kDocuments]};
}

// The loss of one microbatch: sums over its tokens / `divisor`.
nn::Loss loss_of(const models::Model& model, const Tensors& batch, const at::Tensor& divisor, const StepOptions& options) {
  const at::Tensor hidden_BSD = model.hidden(model_inputs(batch, options.documents), options.compute);
  const device::Scope scope("loss");
  return nn::linear_cross_entropy(hidden_BSD, model.head(), batch[kLabels], divisor, options.loss);
}

// The losses of one microbatch and their gradients: [cross-entropy and z-loss, z-loss, gradients...].
Tensors microbatch(const models::Model& model, const Tensors& batch, const at::Tensor& valid, const StepOptions& options) {
  const at::AutoGradMode grad(true);
  const nn::Loss loss = loss_of(model, batch, valid, options);
  Tensors out = torch::autograd::grad({loss.total}, model.parameters().trainable_tensors());
  out.insert(out.begin(), {loss.total.detach(), loss.z});
  return out;
}

// The sum of squares of each stored tensor's gradient, in the order of the physical tensors and their rows.
at::Tensor squares_of(const Tensors& gradients, const nn::Parameters& parameters) {
  Tensors squares;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;  // not trained
    const at::Tensor square = gradients[i] * gradients[i];
    std::vector<int64_t> dims(static_cast<size_t>(square.dim()));
    std::iota(dims.begin(), dims.end(), 0);
    if (parameters.physical()[i].stacked) dims.erase(dims.begin());
    squares.push_back(square.sum(dims).reshape({-1}));
  }
  return at::cat(squares);
}

bool all_finite(const at::Tensor& t) { return at::isfinite(t.detach()).all().item<bool>(); }

}  // namespace

Tensors TokenBatch::on(at::Device device) const {
  spmd::Axes axes{"batch", "sequence"};
  if (tokens.dim() == 3) axes.insert(axes.begin(), "");  // microbatches
  Tensors out;
  for (const at::Tensor& t : {tokens, labels, positions, documents}) {
    if (t.defined()) out.push_back(device.is_cpu() || t.device() == device ? t : spmd::place(t, axes));
  }
  return out;
}

// ---- training -------------------------------------------------------------------------------------------------------------

TrainStep::TrainStep(models::Model& model, Optimizer& optimizer, at::Device device, StepOptions options)
    : model_(model), optimizer_(optimizer), device_(device), options_(options),
      capture_("train_step", [this](const Tensors& inputs) { return record(inputs); }) {}

Tensors TrainStep::loss_and_gradients(const Tensors& batch) {
  const at::Tensor valid = nn::valid_tokens(batch[kLabels]);
  const int64_t accumulation = batch[kTokens].size(0);
  const auto at_index = [&](const auto& pick) {
    Tensors part;
    for (const at::Tensor& t : batch) part.push_back(pick(t));
    return microbatch(model_, part, valid, options_);
  };
  if (accumulation == 1) return at_index([](const at::Tensor& t) { return t.select(0, 0); });

  Tensors sums{at::zeros({}, valid.options()), at::zeros({}, valid.options())};
  for (const at::Tensor& p : model_.parameters().trainable_tensors()) sums.push_back(at::zeros_like(p).detach());
  return device::loop(accumulation, std::move(sums), [&](const at::Tensor& i, const Tensors& carry) {
    Tensors next = at_index([&](const at::Tensor& t) { return t.index_select(0, i.reshape({1})).squeeze(0); });
    for (size_t k = 0; k < next.size(); ++k) next[k] = carry[k] + next[k];
    return next;
  });
}

Tensors TrainStep::record(const Tensors& inputs) {
  const at::NoGradGuard no_grad;
  const size_t n = batch_inputs(options_);
  Tensors gradients = loss_and_gradients({inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(n)});
  const at::Tensor loss = gradients[0], z_loss = gradients[1];
  gradients = model_.parameters().like_physical(std::span(gradients).subspan(2));

  const device::Scope scope("optimizer");
  const at::Tensor squares = squares_of(gradients, model_.parameters());
  const Clip clip = clip_factor(squares, options_.max_norm);
  for (at::Tensor& g : gradients)
    if (g.defined()) g = g * clip.factor;
  const at::Tensor finite = at::isfinite(loss).logical_and(at::isfinite(clip.norm));
  optimizer_.update(gradients, {inputs.begin() + static_cast<std::ptrdiff_t>(n), inputs.end()}, finite);
  model_.update_buffers(finite);
  return {at::stack({loss - z_loss, z_loss, clip.norm, finite.to(at::kFloat)}), squares};
}

Tensors TrainStep::inputs(const TokenBatch& batch, double lr_factor, int64_t step) const {
  Tensors out = batch.on(device_);
  FLAMBEAU_CHECK(out.size() == batch_inputs(options_), "batches have documents when the step was made for them");
  for (const at::Tensor& t : optimizer_.inputs(lr_factor, step)) out.push_back(t.to(device_));
  return out;
}

void TrainStep::prepare(const TokenBatch& example) { capture_.prepare(inputs(example, 0, 1)); }

void TrainStep::start(const TokenBatch& batch, double lr_factor, int64_t step) { pending_ = capture_(inputs(batch, lr_factor, step)); }

StepResult TrainStep::finish() {
  const at::Tensor metrics = pending_.at(0).cpu();
  const float* values = metrics.data_ptr<float>();
  StepResult result{.loss = values[0], .z_loss = values[1], .grad_norm = values[2], .finite = values[3] != 0,
                    .squares = pending_.at(1)};
  pending_.clear();
  return result;
}

// ---- evaluation -----------------------------------------------------------------------------------------------------------

EvalStep::EvalStep(const models::Model& model, at::Device device, StepOptions options)
    : device_(device), capture_("eval_step", [&model, options](const Tensors& inputs) -> Tensors {
        const at::NoGradGuard no_grad;
        const at::Tensor valid = inputs[kLabels].ne(nn::kIgnoredLabel).to(at::kFloat).sum();
        const nn::Loss loss = loss_of(model, inputs, at::ones_like(valid), options);
        return {at::stack({loss.total - loss.z, valid})};
      }) {}

void EvalStep::prepare(const TokenBatch& example) { capture_.prepare(example.on(device_)); }

EvalStep::Result EvalStep::operator()(const TokenBatch& batch) {
  const at::Tensor sums = capture_(batch.on(device_)).at(0).cpu();
  return {sums.data_ptr<float>()[0], sums.data_ptr<float>()[1]};
}

// ---- sampling -------------------------------------------------------------------------------------------------------------

SampleStep::SampleStep(const models::Model& model, at::Device device, StepOptions options, int64_t context)
    : device_(device), context_(context), capture_("sample_step", [&model, options](const Tensors& inputs) -> Tensors {
        const at::NoGradGuard no_grad;
        const at::Tensor logits_SV = model.forward({inputs[0], {}, {}}, options.compute).squeeze(0);
        return {logits_SV.index_select(0, inputs[1]).squeeze(0).to(at::kFloat)};
      }) {}

// The prefix in front of padding that causal attention never looks at, and the index of its last token.
Tensors SampleStep::inputs(const std::vector<int64_t>& prefix) const {
  FLAMBEAU_CHECK(!prefix.empty() && static_cast<int64_t>(prefix.size()) <= context_, "a prefix fits the context");
  const at::Tensor tokens = at::zeros({1, context_}, at::kLong);
  std::copy(prefix.begin(), prefix.end(), tokens.data_ptr<int64_t>());
  const at::Tensor last = at::full({1}, static_cast<int64_t>(prefix.size()) - 1, at::kLong);
  return {tokens.to(device_), last.to(device_)};
}

void SampleStep::prepare() { capture_.prepare(inputs({0})); }

at::Tensor SampleStep::operator()(const std::vector<int64_t>& prefix) { return capture_(inputs(prefix)).at(0).cpu(); }

// ---- diagnosis ------------------------------------------------------------------------------------------------------------

std::string first_non_finite(const models::Model& model, at::Device device, const StepOptions& options,
                             const TokenBatch& batch, const StepResult& result) {
  const nn::Parameters& parameters = model.parameters();
  for (const nn::Physical& p : parameters.physical()) {
    if (all_finite(p.weight->value)) continue;
    const at::Tensor host = p.weight->value.detach().cpu();
    for (size_t row = 0; row < p.rows.size(); ++row) {
      const at::Tensor value = p.stacked ? host[static_cast<int64_t>(row)] : host;
      for (const size_t i : parameters.stored()[p.rows[row]].parameters) {
        const nn::Parameter& parameter = parameters.all()[i];
        if (!all_finite(parameters.part_of(value, parameter))) return "parameter " + parameter.name;
      }
    }
  }
  const at::NoGradGuard no_grad;
  const Tensors all = batch.on(device);
  for (int64_t i = 0; i < all[kTokens].size(0); ++i) {
    Tensors part;
    for (const at::Tensor& t : all) part.push_back(t.select(0, i));
    std::string found;
    const auto probe = [&](const std::string& name, const at::Tensor& value) {
      if (found.empty() && !all_finite(value)) found = name;
    };
    model.forward(model_inputs(part, options.documents), options.compute, probe);
    if (!found.empty()) return "activation " + found;
  }
  if (!std::isfinite(result.loss)) return "loss";
  const at::Tensor squares = result.squares.cpu();
  const float* next = squares.data_ptr<float>();
  for (const nn::Physical& p : parameters.physical()) {
    if (!parameters.traits(p).trainable) continue;
    for (const size_t row : p.rows) {
      if (!std::isfinite(*next++)) return "gradient of " + parameters.spoken_name(parameters.stored()[row]);
    }
  }
  return "grad_norm";
}

}  // namespace flambeau::train

// Causal attention in blocks against PyTorch's scaled_dot_product_attention on the CPU, and what its graph holds and computes.
#include <cmath>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "op_case.h"
#include "ops/op.h"

namespace flambeau::op_test {

namespace {

// What both passes are given, and what PyTorch makes of it in double precision.
struct Scene {
  int64_t B, H, K, S, E;
  int64_t block_q, block_kv;
  int64_t documents = 0;  // in a row, of unequal lengths; 0: none are given
  double spread = 1;      // of the scores: large ones make sharp distributions

  at::Tensor draw(at::IntArrayRef sizes, uint64_t seed, at::ScalarType t) const {
    at::Generator generator = at::detail::createCPUGenerator(seed);
    return at::randn(sizes, generator, at::kDouble).to(t);
  }
  at::Tensor query(at::ScalarType t) const { return (draw({B, H, S, E}, 1, at::kDouble) * spread / std::sqrt(E)).to(t); }
  at::Tensor key(at::ScalarType t) const { return draw({B, K, S, E}, 2, t); }
  at::Tensor value(at::ScalarType t) const { return draw({B, K, S, E}, 3, t); }
  at::Tensor grad(at::ScalarType t) const { return draw({B, H, S, E}, 4, t); }
  at::Tensor numbers() const {  // another row, other ends
    if (documents == 0) return {};
    const at::Tensor rows = at::arange(B, at::kLong).unsqueeze(1) * 3, positions = at::arange(S, at::kLong).unsqueeze(0);
    return (((positions + rows).square() * documents) / (S * S)).to(at::kInt);
  }

  struct Answer {
    at::Tensor out, logsumexp, dquery, dkey, dvalue;
  };
  Answer answer(at::ScalarType t) const {
    const at::AutoGradMode enabled(true);
    const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).detach().requires_grad_(); };
    const at::Tensor q = leaf(query(t)), k = leaf(key(t)), v = leaf(value(t));
    at::Tensor mask = at::ones({S, S}, at::kBool).tril().expand({B, 1, S, S});
    if (documents > 0) mask = mask.logical_and(numbers().unsqueeze(2).eq(numbers().unsqueeze(1)).unsqueeze(1));
    Answer a;
    a.out = at::scaled_dot_product_attention(q, k, v, mask, 0.0, false, 1.0, H != K);
    const auto gradients = torch::autograd::grad({a.out}, {q, k, v}, {grad(t).to(at::kDouble)});
    const at::Tensor scores = at::matmul(q, k.repeat_interleave(H / K, 1).transpose(2, 3)).masked_fill(mask.logical_not(), -INFINITY);
    a.logsumexp = at::logsumexp(scores, {-1}).detach().to(t == at::kDouble ? at::kDouble : at::kFloat);
    a.out = a.out.detach().to(t);
    a.dquery = gradients[0].to(t), a.dkey = gradients[1].to(t), a.dvalue = gradients[2].to(t);
    return a;
  }
};

// Blocks that divide the sequence and that do not, longer and shorter than it, of queries longer than of keys and the other way round.
const Scene kScenes[] = {
    {.B = 2, .H = 4, .K = 2, .S = 16, .E = 8, .block_q = 4, .block_kv = 4},
    {.B = 2, .H = 4, .K = 2, .S = 16, .E = 8, .block_q = 4, .block_kv = 4, .documents = 5},
    {.B = 1, .H = 2, .K = 2, .S = 24, .E = 4, .block_q = 12, .block_kv = 4, .documents = 3},
    {.B = 1, .H = 3, .K = 1, .S = 24, .E = 4, .block_q = 4, .block_kv = 8, .documents = 20},
    {.B = 2, .H = 4, .K = 4, .S = 13, .E = 6, .block_q = 4, .block_kv = 5},
    {.B = 2, .H = 6, .K = 2, .S = 29, .E = 8, .block_q = 7, .block_kv = 3, .documents = 4},
    {.B = 1, .H = 4, .K = 1, .S = 29, .E = 8, .block_q = 3, .block_kv = 10, .documents = 4},
    {.B = 1, .H = 4, .K = 2, .S = 11, .E = 8, .block_q = 0, .block_kv = 0, .documents = 2},
    {.B = 1, .H = 4, .K = 2, .S = 11, .E = 8, .block_q = 64, .block_kv = 4},
    {.B = 1, .H = 2, .K = 1, .S = 1, .E = 8, .block_q = 4, .block_kv = 4, .documents = 1},
    {.B = 1, .H = 2, .K = 1, .S = 700, .E = 16, .block_q = 0, .block_kv = 0, .documents = 6},
    {.B = 1, .H = 2, .K = 1, .S = 24, .E = 8, .block_q = 8, .block_kv = 4, .documents = 3, .spread = 10},
};

const Options kOptions = {.dtypes = kFloats,
                          .tolerances = {{at::kHalf, 4e-3, 4e-3, "probabilities are rounded before they meet the values"},
                                         {at::kBFloat16, 3e-2, 3e-2, "as float16"}}};

std::vector<OpCase> attention_cases() {
  std::vector<OpCase> cases;
  for (const Scene& s : kScenes) {
    Options options = kOptions;
    if (cases.size() > 4) options.dtypes = {at::kBFloat16, at::kFloat};
    if (s.spread > 1) options.tolerances.push_back({at::kFloat, 1e-5, 1e-4, "within 1e-5 of the largest element, which is about 10"});
    const auto arg = [&](auto make) { return given([s, make](at::ScalarType t) { return make(s, t); }); };
    const Arg query = arg([](const Scene& s, at::ScalarType t) { return s.query(t); });
    const Arg key = arg([](const Scene& s, at::ScalarType t) { return s.key(t); });
    const Arg value = arg([](const Scene& s, at::ScalarType t) { return s.value(t); });
    const Arg documents = s.documents == 0 ? Arg(none) : Arg(given(s.numbers()));
    options.reference = [s](const std::vector<c10::IValue>& a) {
      const Scene::Answer answer = s.answer(a[0].toTensor().scalar_type());
      return std::vector<at::Tensor>{answer.out, answer.logsumexp};
    };
    cases.push_back({"flambeau::causal_attention", {query, key, value, documents, s.block_q, s.block_kv}, options});
    options.reference = [s](const std::vector<c10::IValue>& a) {
      const Scene::Answer answer = s.answer(a[0].toTensor().scalar_type());
      return std::vector<at::Tensor>{answer.dquery, answer.dkey, answer.dvalue};
    };
    cases.push_back({"flambeau::causal_attention_backward",
                     {arg([](const Scene& s, at::ScalarType t) { return s.grad(t); }), query, key, value, documents,
                      arg([](const Scene& s, at::ScalarType t) { return s.answer(t).out; }),
                      arg([](const Scene& s, at::ScalarType t) { return s.answer(t).logsumexp; }), s.block_q, s.block_kv},
                     options});
  }
  return cases;
}
const bool registered = add_cases(attention_cases());

// ---- what the graphs hold ---------------------------------------------------------------------------------------------------

struct Facts {
  int64_t largest = 0;     // elements of a value
  double operations = 0;   // of products, loops counted as often as they turn
};

double operations_of(const hlo::Node& node) {
  const auto& dims = node.operands[0].dims();
  const auto& result = node.results[0];
  double contracted = static_cast<double>(node.operands[0].elements()) * static_cast<double>(node.operands[1].elements());
  // |lhs| |rhs| = batch^2 contracted^2 left right and |result| = batch left right, of [B, K] batch dimensions.
  const double batch = static_cast<double>(dims[0] * dims[1]);
  contracted = std::sqrt(contracted / (batch * static_cast<double>(result.elements())));
  return 2 * contracted * static_cast<double>(result.elements());
}

void look(const hlo::Block& block, double turns, Facts& facts) {
  for (const auto& node : block.nodes) {
    for (const hlo::Value& v : node->results) facts.largest = std::max(facts.largest, v.elements());
    if (node->op == hlo::Op::DotGeneral) facts.operations += turns * operations_of(*node);
    double inner = turns;
    if (node->op == hlo::Op::While) {
      for (const auto& n : node->regions[0]->nodes) {
        if (n->op != hlo::Op::Constant) continue;
        int32_t count = 0;
        const hlo::Literal& literal = std::get<hlo::Literal>(*n->find("value"));
        std::memcpy(&count, literal.bytes.data(), sizeof(count));
        inner = turns * count;
      }
    }
    for (const auto& region : node->regions) look(*region, inner, facts);
  }
}

TEST(CausalAttention, HoldsNoSquareAndComputesHalfOfIt) {
  constexpr int64_t B = 1, H = 4, K = 2, S = 4096, E = 64;
  for (const auto& [block_q, block_kv] : {std::pair<int64_t, int64_t>{0, 0}, {256, 1024}, {300, 700}}) {
    for (const bool backward : {false, true}) {
      hlo::Graph graph;
      hlo::Builder b(graph);
      const auto parameter = [&](hlo::Dims dims, DType t) { return ops::Operand{graph.add_parameter({t, std::move(dims)})}; };
      const ops::Operand query = parameter({B, H, S, E}, DType::BF16), key = parameter({B, K, S, E}, DType::BF16),
                         value = parameter({B, K, S, E}, DType::BF16), documents = parameter({B, S}, DType::S32);
      std::vector<ops::Argument> arguments{query, key, value, documents, block_q, block_kv};
      if (backward) {
        arguments.insert(arguments.begin(), parameter({B, H, S, E}, DType::BF16));
        arguments.insert(arguments.begin() + 5, {parameter({B, H, S, E}, DType::BF16), parameter({B, H, S}, DType::F32)});
      }
      const char* name = backward ? "flambeau::causal_attention_backward" : "flambeau::causal_attention";
      graph.set_results(ops::find_row(name)->lower(b, arguments, nullptr));
      hlo::simplify(graph);
      Facts facts;
      look(graph.body(), 1, facts);
      EXPECT_LT(facts.largest, S * S / 4) << name;
      const double half_square = 2.0 * B * H * S * (S + 1) / 2 * E, products = backward ? 5 : 2;
      EXPECT_GE(facts.operations, products * half_square) << name;
      EXPECT_LE(facts.operations, products * half_square * (block_q == 0 ? 1.13 : 1.3)) << name;
    }
  }
}

}  // namespace

}  // namespace flambeau::op_test

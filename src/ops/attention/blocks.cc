// Causal attention in blocks of queries and keys: the matrix of scores never exists, forward or backward.
//
// query [B, H, S, E], already scaled; key and value [B, K, S, E], H a multiple of K: head h reads key head h / (H / K).
// documents [B, S], where given: a query sees only keys of its own document. One loop goes through the pairs of blocks that meet
// the diagonal or lie below it, a block of queries after another, so that about half of the square is computed. A block of queries
// carries the greatest score, the sum of exponentials and the weighted values so far (online softmax, Milakov and Gimelshein 2018); the
// backward pass makes the probabilities again from logsumexp [B, H, S] (FlashAttention-2, Dao 2023). Products take the operands as
// they are and accumulate in float32, the state is float32.
//
// Where a block length does not divide S, the last block begins earlier: its queries are computed twice, alike, and keys
// that the block before has are masked.
#include <algorithm>

#include "ops/pointwise.h"
#include "ops/tables.h"
#include "ops/tensor_util.h"

namespace flambeau::ops {

namespace {

using hlo::Comparison;
using hlo::DotDims;

// In place of -inf, so that a row whose keys are all masked so far has a finite maximum: what it gathers meanwhile is multiplied
// by exp(kNever - maximum) = 0 when its first key comes, at the latest its own.
constexpr double kNever = -1e30;
// Chosen blocks: each turn of the loop reads and writes a block of queries, of keys and of sums for its scores, so longer blocks move
// less memory, while the scores of a pair stay small beside a layer's activations.
constexpr int64_t kLongestBlock = 512, kShortestBlock = 128, kScoreBytes = int64_t{256} << 20;

// Legend: B batch, K key heads, G query heads a key head, S sequence, E width, q and k lengths of a block of queries and of keys.
class BlockAttention {
 public:
  BlockAttention(Builder& b, Value query, Value key, Value value, std::optional<Value> documents, int64_t block_q, int64_t block_kv)
      : b_(b), dtype_(query.dtype()), compute_(compute_type(dtype_)) {
    check(query, key, value, documents, block_q, block_kv);
    B_ = query.dim(0), K_ = key.dim(1), G_ = query.dim(1) / K_, S_ = query.dim(2), E_ = query.dim(3);
    int64_t chosen = kLongestBlock;
    while (chosen > kShortestBlock && B_ * K_ * G_ * chosen * chosen * byte_size(compute_) > kScoreBytes) chosen /= 2;
    q_ = std::min(S_, block_q == 0 ? chosen : block_q);
    k_ = std::min(S_, block_kv == 0 ? chosen : block_kv);
    query_ = grouped(query), key_ = key, value_ = value, documents_ = documents;
  }

  // (output [B, H, S, E], logsumexp [B, H, S])
  std::array<Value, 2> forward() {
    const std::vector<Value> init{zeros(b_, compute_, {B_, K_, G_, q_, E_}), zeros(b_, compute_, {B_, K_, G_, q_}),
                                  zeros(b_, compute_, {B_, K_, G_, q_}),     zeros(b_, dtype_, {B_, K_, G_, S_, E_}),
                                  zeros(b_, compute_, {B_, K_, G_, S_})};
    const std::vector<Value> last = over_pairs(init, [&](const Pair& pair, std::span<const Value> state) {
      const Value s = scores(pair);
      const Value before = where_first(pair, filled(b_, compute_, kNever, {B_, K_, G_, q_}), state[1]);
      const Value greatest = b_.maximum(before, b_.reduce(s, {4}, hlo::Reduction::Max));
      const Value fade = b_.exp(b_.subtract(before, greatest));
      const Value p = b_.exp(b_.subtract(s, rows(greatest, k_)));
      const Value total = b_.add(b_.multiply(or_zero(pair, state[2]), fade), sum(b_, p, {4}));
      const Value sums = b_.add(b_.multiply(or_zero(pair, state[0]), rows(fade, E_)), over_keys(p, pair.of_keys(value_)));
      // Written at every pair: the last one of a block of queries is what stays.
      const Value out = pair.put_rows(state[3], convert(b_, b_.divide(sums, rows(total, E_)), dtype_));
      return std::vector{sums, greatest, total, out, pair.put_rows(state[4], b_.add(greatest, b_.log(total)))};
    });
    return {ungrouped(last[3]), ungrouped(last[4])};
  }

  // Gradients of query, key and value.
  std::array<Value, 3> backward(Value grad, Value out, Value logsumexp) {
    grad = grouped(grad);
    const Value lse = grouped(convert(b_, logsumexp, compute_));
    const Value delta = sum(b_, b_.multiply(convert(b_, grad, compute_), convert(b_, grouped(out), compute_)), {4});
    const std::vector<Value> init{zeros(b_, compute_, {B_, K_, G_, q_, E_}), zeros(b_, dtype_, {B_, K_, G_, S_, E_}),
                                  zeros(b_, compute_, {B_, K_, S_, E_}), zeros(b_, compute_, {B_, K_, S_, E_})};
    const std::vector<Value> last = over_pairs(init, [&](const Pair& pair, std::span<const Value> state) {
      const Value g = pair.of_rows(grad), k = pair.of_keys(key_);
      const Value p = b_.exp(b_.subtract(scores(pair), rows(pair.of_rows(lse), k_)));
      const Value dp = against_keys(g, pair.of_keys(value_));
      const Value ds = b_.multiply(p, b_.subtract(dp, rows(pair.of_rows(delta), k_)));
      const Value dq = b_.add(or_zero(pair, state[0]), over_keys(ds, k));
      const Value dk = over_rows(ds, pair.own_rows(pair.of_rows(query_))), dv = over_rows(p, pair.own_rows(g));
      return std::vector{dq, pair.put_rows(state[1], convert(b_, dq, dtype_)), pair.add_keys(state[2], dk), pair.add_keys(state[3], dv)};
    });
    return {ungrouped(last[1]), convert(b_, last[2], dtype_), convert(b_, last[3], dtype_)};
  }

 private:
  static void check(Value query, Value key, Value value, const std::optional<Value>& documents, int64_t block_q, int64_t block_kv) {
    if (query.rank() != 4 || key.rank() != 4 || key.type() != value.type() || query.dtype() != key.dtype() || !is_float(query.dtype()) ||
        key.dim(1) == 0 || query.dim(1) % key.dim(1) != 0 || key.dims() != replaced(query.dims(), 1, key.dim(1)))
      raise<InvalidArgument>("[causal_attention] expected query [B, H, S, E], key and value [B, K, S, E] of one float dtype, with K "
                             "dividing H, got {}, {} and {}",
                             query.type().to_string(), key.type().to_string(), value.type().to_string());
    if (documents && (documents->dims() != Dims{query.dim(0), query.dim(2)} || !is_integer(documents->dtype())))
      raise<InvalidArgument>("[causal_attention] expected integer documents of shape {}, got {}",
                             shape_text({query.dim(0), query.dim(2)}), documents->type().to_string());
    if (block_q < 0 || block_kv < 0)
      raise<InvalidArgument>("[causal_attention] expected block lengths of at least 1, or 0 (chosen), got {} and {}", block_q, block_kv);
  }

  // A block of queries and one of keys: where they begin, and what begins there.
  struct Pair {
    const BlockAttention& a;
    Value i, j;        // which blocks
    Value row, key;    // their first query and key
    bool rows_overlap, keys_overlap;

    Value at(Value x, int64_t dim, Value start, int64_t size) const {
      std::vector<Value> starts(static_cast<size_t>(x.rank()), a.b_.constant(DType::S32, 0));
      starts[static_cast<size_t>(dim)] = start;
      return a.b_.dynamic_slice(x, starts, replaced(x.dims(), dim, size));
    }
    Value put(Value x, int64_t dim, Value start, Value part) const {
      std::vector<Value> starts(static_cast<size_t>(x.rank()), a.b_.constant(DType::S32, 0));
      starts[static_cast<size_t>(dim)] = start;
      return a.b_.dynamic_update_slice(x, part, starts);
    }
    Value of_rows(Value x) const { return at(x, 3, row, a.q_); }  // of [B, K, G, S, ..]
    Value of_keys(Value x) const { return at(x, 2, key, a.k_); }  // of [B, K, S, E]
    Value put_rows(Value x, Value part) const { return put(x, 3, row, part); }
    Value add_keys(Value x, Value part) const { return put(x, 2, key, a.b_.add(of_keys(x), part)); }
    // Zeros for queries that the block before has, too: what is summed over queries counts each once.
    Value own_rows(Value x) const {
      if (!rows_overlap) return x;
      const Value index = indices(x.dims(), 3, row), first = a.b_.multiply(i, a.b_.constant(DType::S32, a.q_));
      return a.b_.select(a.b_.compare(index, a.b_.broadcast(first, x.dims()), Comparison::GE), x, zeros(a.b_, x.dtype(), x.dims()));
    }
    // start, start + 1, ... along `dim`
    Value indices(const Dims& dims, int64_t dim, Value start) const {
      return a.b_.add(a.b_.iota({DType::S32, dims}, dim), a.b_.broadcast(start, dims));
    }
    // [B or 1, q, k]
    Value allowed() const {
      const Dims square{1, a.q_, a.k_};
      const Value keys = indices(square, 2, key);
      Value yes = a.b_.compare(indices(square, 1, row), keys, Comparison::GE);
      if (keys_overlap) {
        const Value first = a.b_.multiply(j, a.b_.constant(DType::S32, a.k_));
        yes = a.b_.logical_and(yes, a.b_.compare(keys, a.b_.broadcast(first, square), Comparison::GE));
      }
      if (!a.documents_) return yes;
      const Dims all{a.B_, a.q_, a.k_};
      const Value mine = a.b_.broadcast_in_dim(at(*a.documents_, 1, row, a.q_), all, {0, 1});
      const Value theirs = a.b_.broadcast_in_dim(at(*a.documents_, 1, key, a.k_), all, {0, 2});
      return a.b_.logical_and(a.b_.broadcast(yes, all), a.b_.compare(mine, theirs, Comparison::EQ));
    }
  };

  int64_t pair_count() const {
    int64_t count = 0;
    for (int64_t first = 0; first < S_; first += q_) count += (std::min(first + q_, S_) - 1) / k_ + 1;
    return count;
  }

  // state = body(pair, state) for each pair, the keys of a block of queries in order.
  template <class Body>
  std::vector<Value> over_pairs(const std::vector<Value>& state, const Body& body) {
    std::vector<Value> init{b_.constant(DType::S32, 0), b_.constant(DType::S32, 0)};
    init.insert(init.end(), state.begin(), state.end());
    const auto scalar = [&](int64_t x) { return b_.constant(DType::S32, x); };
    const auto start = [&](Value block, int64_t length) {
      const Value first = b_.multiply(block, scalar(length));
      return S_ % length == 0 ? first : b_.minimum(first, scalar(S_ - length));
    };
    std::vector<Value> last = b_.for_loop(pair_count(), init, [&](Builder&, std::span<const Value> carry) {
      const Value i = carry[1], j = carry[2];
      const Pair pair{*this, i, j, start(i, q_), start(j, k_), S_ % q_ != 0, S_ % k_ != 0};
      std::vector<Value> next = body(pair, carry.subspan(3));
      const Value next_j = b_.add(j, scalar(1));
      const Value last_row = b_.add(pair.row, scalar(q_ - 1));
      const Value more = b_.compare(b_.multiply(next_j, scalar(k_)), last_row, Comparison::LE);
      next.insert(next.begin(), {b_.select(more, i, b_.add(i, scalar(1))), b_.select(more, next_j, scalar(0))});
      return next;
    });
    last.erase(last.begin(), last.begin() + 2);
    return last;
  }

  Value where_first(const Pair& pair, Value first, Value otherwise) const {
    const Value is_first = b_.compare(pair.j, b_.constant(DType::S32, 0), Comparison::EQ);
    return b_.select(b_.broadcast(is_first, otherwise.dims()), first, otherwise);
  }
  Value or_zero(const Pair& pair, Value state) const { return where_first(pair, zeros(b_, state.dtype(), state.dims()), state); }

  // [B, H, S, ..] <-> [B, K, G, S, ..]: neighbours in memory already.
  Value grouped(Value x) const {
    Dims dims{B_, K_, G_};
    dims.insert(dims.end(), x.dims().begin() + 2, x.dims().end());
    return b_.reshape(x, std::move(dims));
  }
  Value ungrouped(Value x) const {
    Dims dims{B_, K_ * G_};
    dims.insert(dims.end(), x.dims().begin() + 3, x.dims().end());
    return b_.reshape(x, std::move(dims));
  }
  Value rows(Value statistic, int64_t width) const {
    return b_.broadcast_in_dim(statistic, {B_, K_, G_, q_, width}, {0, 1, 2, 3});
  }

  // [B, K, G, q, E] x [B, K, k, E] -> [B, K, G, q, k]
  Value against_keys(Value x, Value y) const { return b_.dot_general(x, y, DotDims{{0, 1}, {0, 1}, {4}, {3}}, compute_); }
  // [B, K, G, q, k] x [B, K, k, E] -> [B, K, G, q, E]
  Value over_keys(Value p, Value y) const {
    return b_.dot_general(convert(b_, p, dtype_), y, DotDims{{0, 1}, {0, 1}, {4}, {2}}, compute_);
  }
  // [B, K, G, q, k] x [B, K, G, q, E] -> [B, K, k, E]
  Value over_rows(Value p, Value x) const {
    return b_.dot_general(convert(b_, p, dtype_), x, DotDims{{0, 1}, {0, 1}, {2, 3}, {2, 3}}, compute_);
  }

  Value scores(const Pair& pair) const {
    const Value s = against_keys(pair.of_rows(query_), pair.of_keys(key_));
    const Value yes = pair.allowed();
    const Value everywhere = yes.dim(0) == 1 ? b_.broadcast_in_dim(b_.reshape(yes, {q_, k_}), s.dims(), {3, 4})
                                             : b_.broadcast_in_dim(yes, s.dims(), {0, 3, 4});
    return b_.select(everywhere, s, filled(b_, compute_, kNever, s.dims()));
  }

  Builder& b_;
  DType dtype_, compute_;
  int64_t B_, K_, G_, S_, E_, q_, k_;
  Value query_, key_, value_;
  std::optional<Value> documents_;
};

std::array<Value, 2> causal_attention(Builder& b, Value query, Value key, Value value, std::optional<Value> documents, int64_t block_q,
                                      int64_t block_kv) {
  return BlockAttention(b, query, key, value, documents, block_q, block_kv).forward();
}

std::array<Value, 3> causal_attention_backward(Builder& b, Value grad, Value query, Value key, Value value,
                                               std::optional<Value> documents, Value out, Value logsumexp, int64_t block_q,
                                               int64_t block_kv) {
  if (grad.type() != query.type() || out.type() != query.type() || logsumexp.dims() != Dims{query.dim(0), query.dim(1), query.dim(2)})
    raise<InvalidArgument>("[causal_attention_backward] expected a gradient and an output like the query, {}, and a logsumexp for each of "
                           "its rows, got {}, {} and {}",
                           query.type().to_string(), grad.type().to_string(), out.type().to_string(), logsumexp.type().to_string());
  return BlockAttention(b, query, key, value, documents, block_q, block_kv).backward(grad, out, logsumexp);
}

constexpr Row kRows[] = {
    own_row("flambeau::causal_attention", lower<&causal_attention>(),
            "(Tensor query, Tensor key, Tensor value, Tensor? documents=None, int block_q=0, int block_kv=0) -> "
            "(Tensor output, Tensor logsumexp)"),
    own_row("flambeau::causal_attention_backward", lower<&causal_attention_backward>(),
            "(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? documents, Tensor output, Tensor logsumexp, int block_q=0, "
            "int block_kv=0) -> (Tensor, Tensor, Tensor)"),
};

}  // namespace

std::span<const Row> block_attention_rows() { return kRows; }

}  // namespace flambeau::ops

// Arithmetic on constants, for simplify(). Everything here is exact or refused: a folded program gives the same bits.
#pragma once

#include <optional>

#include "hlo/graph.h"

namespace flambeau::hlo {

// Constants of more elements are folded only where one element stands for all.
inline constexpr int64_t kMostFolded = 64;

// The one element a constant repeats; null when it holds several.
const char* uniform_element(const Literal& literal);

// Whether every value of `from` is one of `to`, so that converting there and back changes nothing.
bool is_lossless(DType from, DType to);

// The constant that a node gives whose operands are all constants; nothing when it cannot be known exactly: integer and
// logical arithmetic, comparisons, select, conversions, and movement of elements.
std::optional<Literal> fold(const Node& node);

}  // namespace flambeau::hlo

// Pieces of StableHLO text.
#pragma once

#include <span>
#include <string>

#include "hlo/graph.h"

namespace flambeau::hlo {

// dense<...> without its type.
std::string literal_text(const Literal& literal);
// An attribute's value, with its type where MLIR asks for one.
std::string attribute_text(const AttributeValue& value);
// {a = 1 : i64, b = "text"}
std::string dictionary_text(std::span<const Attribute> attributes);

}  // namespace flambeau::hlo

#include "data/tokenizer.h"

#include "base/error.h"

namespace flambeau::data {

std::vector<int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string ByteTokenizer::decode(std::span<const int64_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (int64_t id : ids) {
    if (id < 0 || id >= vocab_size()) {
      raise<InvalidArgument>("[decode] expected token ids in [0, {}), got {}; are they of another tokenizer?", vocab_size(), id);
    }
    if (id < 256) text.push_back(static_cast<char>(id));
  }
  return text;
}

}  // namespace flambeau::data

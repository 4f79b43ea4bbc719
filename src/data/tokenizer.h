// Text to token ids and back.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flambeau::data {

// Immutable once made; may be used from several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int64_t vocab_size() const = 0;
  // The ids that begin and end a document. encode() does not add them.
  virtual int64_t bos() const = 0;
  virtual int64_t eos() const = 0;
  // Any bytes are taken, invalid UTF-8 too.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // The text of the ids, without bos and eos. InvalidArgument for an id outside of [0, vocab_size).
  virtual std::string decode(std::span<const int64_t> ids) const = 0;
};

// Each byte is a token of its own: ids 0..255, bos 256, eos 257. Needs no file, and any text goes there and back unchanged.
class ByteTokenizer : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 258; }
  int64_t bos() const override { return 256; }
  int64_t eos() const override { return 257; }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int64_t> ids) const override;
};

}  // namespace flambeau::data

// train/data/token_file.h
// Reads tokenized documents on disk, as made by tools/prepare_data.py. Byte format:
// docs/formats/tokens.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "common/files/input_file.h"

namespace rp {

// Consecutive tokens of a document.
struct TokenSpan {
  std::vector<std::uint32_t> tokens;
  std::vector<std::uint8_t> is_trained;  // one for each token, 0 or 1
};

// Returns the identity of the tokenizer in a model's folder, as stored in token files: the first 8
// bytes of the SHA-256 of its tokenizer.json, little endian. Returns 0 if there is no such file.
// Throws rp::Error (kBadInput) if it cannot be read.
[[nodiscard]] std::uint64_t tokenizer_identity(const std::filesystem::path& model);

// An open token file. Keeps the documents' ends in memory (8 bytes a document) and reads tokens on
// demand. Several threads may read at the same time.
class TokenFile {
 public:
  enum class Kind : std::uint32_t { kText = 0, kChat = 1 };

  // Reads the whole file once and checks every rule of its format, including the checksum, and that
  // all ids are below `vocabulary`, the size of the model's vocabulary. Throws rp::Error
  // (kBadInput) naming the file and the violated rule.
  static TokenFile open(const std::filesystem::path& path, std::int64_t vocabulary);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] std::uint64_t num_documents() const { return document_ends_.size() - 1; }
  [[nodiscard]] std::uint64_t num_tokens() const { return document_ends_.back(); }
  [[nodiscard]] std::uint64_t num_trained() const { return num_trained_; }
  [[nodiscard]] std::optional<std::uint32_t> eos_token() const { return eos_token_; }
  // Returns the identity of the tokenizer that made the file (tokenizer_identity()); 0: unknown.
  [[nodiscard]] std::uint64_t tokenizer() const { return tokenizer_; }
  // Returns the checksum of everything after the header. Files with equal checksums hold the same
  // data.
  [[nodiscard]] std::uint32_t checksum() const { return checksum_; }

  // Document i consists of tokens document_begin(i) to document_end(i) of the file. It is never
  // empty.
  [[nodiscard]] std::uint64_t document_begin(std::uint64_t document) const { return document_ends_[document]; }
  [[nodiscard]] std::uint64_t document_end(std::uint64_t document) const { return document_ends_[document + 1]; }

  // Returns tokens `begin` to `end` of the file. Throws rp::Error (kBadInput) if the file has
  // changed since open(). REQUIRES: begin <= end <= num_tokens().
  [[nodiscard]] TokenSpan read(std::uint64_t begin, std::uint64_t end) const;

 private:
  explicit TokenFile(InputFile file) : file_(std::move(file)) {}
  void check_content(std::uint64_t max_token) const;

  InputFile file_;
  Kind kind_ = Kind::kText;
  std::vector<std::uint64_t> document_ends_;  // the first is 0
  std::uint64_t num_trained_ = 0;
  std::uint64_t vocabulary_ = 0;  // size of the model's vocabulary
  std::optional<std::uint32_t> eos_token_;
  std::uint32_t checksum_ = 0;
  std::uint64_t tokenizer_ = 0;
  std::uint64_t tokens_offset_ = 0;
  std::uint64_t mask_offset_ = 0;
};

}  // namespace rp

// train/data/token_file.h
// Tokenized documents on disk, as tools/prepare_data.py makes them. Byte format: docs/formats/tokens.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "common/files/input_file.h"

namespace rp {

// Some consecutive tokens of a document.
struct TokenSpan {
  std::vector<std::uint32_t> tokens;
  std::vector<std::uint8_t> is_trained;  // of each token, 0 or 1
};

// The identity of the tokenizer in a model's folder, as token files have it: the first bytes of the SHA-256 of its
// tokenizer.json. 0 where there is no such file. Throws rp::Error (kBadInput) if it cannot be read.
[[nodiscard]] std::uint64_t tokenizer_identity(const std::filesystem::path& model);

// An open token file. Keeps the documents' ends in memory (8 bytes a document) and reads tokens as they are asked for.
// Reads may come from several threads at once.
class TokenFile {
 public:
  enum class Kind : std::uint32_t { kText = 0, kChat = 1 };

  // Reads the whole file once and checks every rule of its format, the checksum among them, and that all ids are below
  // `vocabulary`, the model's. Throws rp::Error (kBadInput) naming file and rule.
  static TokenFile open(const std::filesystem::path& path, std::int64_t vocabulary);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] std::uint64_t num_documents() const { return document_ends_.size() - 1; }
  [[nodiscard]] std::uint64_t num_tokens() const { return document_ends_.back(); }
  [[nodiscard]] std::uint64_t num_trained() const { return num_trained_; }
  [[nodiscard]] std::optional<std::uint32_t> eos_token() const { return eos_token_; }
  // The identity of the tokenizer that made it (tokenizer_identity()); 0: unknown.
  [[nodiscard]] std::uint64_t tokenizer() const { return tokenizer_; }
  // Of everything after the header: two files with the same one hold the same data.
  [[nodiscard]] std::uint32_t checksum() const { return checksum_; }

  // Tokens document_begin(i) to document_end(i) of the file are document i, never empty.
  [[nodiscard]] std::uint64_t document_begin(std::uint64_t document) const { return document_ends_[document]; }
  [[nodiscard]] std::uint64_t document_end(std::uint64_t document) const { return document_ends_[document + 1]; }

  // Tokens `begin` to `end` of the file. Throws rp::Error (kBadInput) if it was changed since open().
  // REQUIRES: begin <= end <= num_tokens().
  [[nodiscard]] TokenSpan read(std::uint64_t begin, std::uint64_t end) const;

 private:
  explicit TokenFile(InputFile file) : file_(std::move(file)) {}
  void check_content(std::uint64_t max_token) const;

  InputFile file_;
  Kind kind_ = Kind::kText;
  std::vector<std::uint64_t> document_ends_;  // the first is 0
  std::uint64_t num_trained_ = 0;
  std::uint64_t vocabulary_ = 0;  // the model's
  std::optional<std::uint32_t> eos_token_;
  std::uint32_t checksum_ = 0;
  std::uint64_t tokenizer_ = 0;
  std::uint64_t tokens_offset_ = 0;
  std::uint64_t mask_offset_ = 0;
};

}  // namespace rp

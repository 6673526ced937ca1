// tests/train/token_file_bytes.h
// Builds the bytes of token files (docs/formats/tokens.md), both valid and invalid ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/files/crc32.h"

namespace rp {

// The header and content of a token file. bytes() serialises them without checking that they agree.
struct TokenFileContent {
  struct Document {
    std::vector<std::uint32_t> tokens;
    std::vector<std::uint8_t> mask;
  };

  explicit TokenFileContent(const std::vector<Document>& documents, std::uint32_t kind_number) : kind(kind_number) {
    for (const Document& document : documents) {
      tokens.insert(tokens.end(), document.tokens.begin(), document.tokens.end());
      mask.insert(mask.end(), document.mask.begin(), document.mask.end());
      ends.push_back(tokens.size());
      longest_document = std::max<std::uint64_t>(longest_document, document.tokens.size());
    }
    num_documents = documents.size();
    num_tokens = tokens.size();
    num_trained = static_cast<std::uint64_t>(std::count(mask.begin(), mask.end(), 1));
    if (!tokens.empty()) max_token = *std::max_element(tokens.begin(), tokens.end());
  }

  [[nodiscard]] std::string bytes() const {
    std::string content;
    append(content, ends);
    append(content, tokens);
    append(content, mask);
    const std::uint32_t checksum = crc32(0, content.data(), content.size()) ^ checksum_error;
    std::string all = magic;
    append(all, std::vector<std::uint32_t>{version, header_bytes});
    append(all, std::vector<std::uint64_t>{vocabulary, num_documents, num_tokens, num_trained});
    append(all, std::vector<std::uint32_t>{max_token, eos_token, kind, checksum});
    append(all, std::vector<std::uint64_t>{longest_document, tokenizer});
    return all + content;
  }

  std::string magic = "RPTOKENS";
  std::uint32_t version = 1;
  std::uint32_t header_bytes = 80;
  std::uint64_t vocabulary = 100;
  std::uint64_t num_documents = 0;
  std::uint64_t num_tokens = 0;
  std::uint64_t num_trained = 0;
  std::uint32_t max_token = 0;
  std::uint32_t eos_token = 2;
  std::uint32_t kind = 0;
  std::uint32_t checksum_error = 0;
  std::uint64_t longest_document = 0;
  std::uint64_t tokenizer = 0;
  std::vector<std::uint64_t> ends = {0};
  std::vector<std::uint32_t> tokens;
  std::vector<std::uint8_t> mask;

 private:
  template <typename T>
  static void append(std::string& to, const std::vector<T>& values) {
    to.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
};

}  // namespace rp

#include "train/data/token_file.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"
#include "tests/train/token_file_bytes.h"

namespace rp {
namespace {

TokenFileContent two_documents() { return TokenFileContent({{{5, 6, 7}, {0, 1, 1}}, {{8, 9}, {0, 1}}}, 1); }

TEST(TokenFile, DocumentsAndTheirMasksAreRead) {
  const TempDirectory directory;
  const auto file = TokenFile::open(directory.write("data", two_documents().bytes()), 10);
  EXPECT_EQ(file.kind(), TokenFile::Kind::kChat);
  EXPECT_EQ(file.num_documents(), 2U);
  EXPECT_EQ(file.num_tokens(), 5U);
  EXPECT_EQ(file.num_trained(), 3U);
  EXPECT_EQ(file.eos_token(), 2U);
  EXPECT_EQ(file.document_begin(1), 3U);
  EXPECT_EQ(file.document_end(1), 5U);
  const TokenSpan span = file.read(2, 4);
  EXPECT_EQ(span.tokens, (std::vector<std::uint32_t>{7, 8}));
  EXPECT_EQ(span.is_trained, (std::vector<std::uint8_t>{1, 0}));
}

TEST(TokenFile, EveryLieIsRefusedWithTheFileAndTheRule) {
  using Change = std::function<void(TokenFileContent&)>;
  const std::vector<std::pair<std::string, Change>> cases = {
      {"not a token file", [](auto& f) { f.magic = "GGUFGGUF"; }},
      {"version 2", [](auto& f) { f.version = 2; }},
      {"header of 96 bytes", [](auto& f) { f.header_bytes = 96; }},
      {"has no tokens", [](auto& f) { f = TokenFileContent({}, 0); }},
      {"has no trained tokens",
       [](auto& f) {
         f = TokenFileContent({{{1}, {0}}}, 0);
       }},
      {"does not fit", [](auto& f) { f.num_documents = 3; }},
      {"does not fit", [](auto& f) { f.num_documents = UINT64_MAX; }},
      {"does not fit", [](auto& f) { f.num_documents = (std::uint64_t{1} << 61) + 2; }},
      {"does not fit", [](auto& f) { f.num_tokens = std::uint64_t{1} << 62; }},
      {"does not fit", [](auto& f) { f.num_tokens += 1; }},
      {"6 of its 5 tokens are trained", [](auto& f) { f.num_trained = 6; }},
      {"2 tokens are trained, but marks 3", [](auto& f) { f.num_trained = 2; }},
      {"vocabulary is 0", [](auto& f) { f.vocabulary = 0; }},
      {"vocabulary is 4294967296", [](auto& f) { f.vocabulary = std::uint64_t{1} << 32; }},
      {"largest token is 9 of a vocabulary of 9", [](auto& f) { f.vocabulary = 9; }},
      {"largest token is 8, but has 9", [](auto& f) { f.max_token = 8; }},
      {"end-of-text token is 100", [](auto& f) { f.eos_token = 100; }},
      {"kind is 2", [](auto& f) { f.kind = 2; }},
      {"longest document has 4 tokens, but one has 3", [](auto& f) { f.longest_document = 4; }},
      {"from token 1 to 5", [](auto& f) { f.ends[0] = 1; }},
      {"from token 0 to 4", [](auto& f) { f.ends[2] = 4; }},
      {"document 0 goes from token 0 to 0", [](auto& f) { f.ends[1] = 0; }},
      {"document 1 goes from token 6 to 5", [](auto& f) { f.ends[1] = 6; }},
      {"mask holds something else", [](auto& f) { f.mask[0] = 2; }},
      {"checksum", [](auto& f) { f.checksum_error = 1; }},
  };
  const TempDirectory directory;
  for (const auto& [rule, change] : cases) {
    SCOPED_TRACE(rule);
    TokenFileContent content = two_documents();
    change(content);
    const auto path = directory.write("data.tokens", content.bytes());
    expect_refusal({path.string(), rule}, [&] { TokenFile::open(path, 1000); });
  }
}

TEST(TokenFile, AFileThatIsCutAnywhereIsRefused) {
  const TempDirectory directory;
  const std::string whole = two_documents().bytes();
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const auto path = directory.write("cut", whole.substr(0, bytes));
    expect_refusal({path.string()}, [&] { TokenFile::open(path, 1000); });
  }
  const auto path = directory.write("long", whole + "x");
  expect_refusal({path.string(), "does not fit"}, [&] { TokenFile::open(path, 1000); });
}

TEST(TokenFile, DataOfAnotherTokenizerIsRefusedWithBothVocabularies) {
  const TempDirectory directory;
  const auto path = directory.write("data", two_documents().bytes());
  expect_refusal({path.string(), "up to 9", "tokenizer of 100 tokens", "vocabulary is 9"},
                 [&] { TokenFile::open(path, 9); });
}

TEST(TokenFile, KnowsItsTokenizerByTheChecksumOfItsFile) {
  const TempDirectory directory;
  EXPECT_EQ(tokenizer_identity(directory.path()), 0U) << "no tokenizer.json";
  (void)directory.write("tokenizer.json", "abc");
  constexpr std::uint64_t kOfAbc =
      0xeacf018fbf1678ba;  // SHA-256 of "abc" begins with ba7816bf 8f01cfea (FIPS 180-2, B.1)
  EXPECT_EQ(tokenizer_identity(directory.path()), kOfAbc);
  TokenFileContent content = two_documents();
  EXPECT_EQ(TokenFile::open(directory.write("data", content.bytes()), 100).tokenizer(), 0U);
  content.tokenizer = kOfAbc;
  EXPECT_EQ(TokenFile::open(directory.write("data", content.bytes()), 100).tokenizer(), kOfAbc);
}

TEST(TokenFile, AFileThatChangesWhileItIsReadIsAnErrorAndNotAnIdBeyondTheVocabulary) {
  const TempDirectory directory;
  TokenFileContent content = two_documents();
  const auto path = directory.write("data", content.bytes());
  const auto file = TokenFile::open(path, 10);
  content.tokens[1] = 1'000'000;
  std::ofstream(path, std::ios::binary | std::ios::in) << content.bytes();
  expect_refusal({path.string(), "changed", "1000000"}, [&] { (void)file.read(0, 5); });
}

}  // namespace
}  // namespace rp

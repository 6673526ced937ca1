// Files that must be refused, each for the rule that it breaks, and files that must be accepted.
#include "model_files/weights/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "common/system/clock.h"
#include "common/text.h"
#include "tests/common/expect_refusal.h"
#include "tests/common/sanitizers.h"
#include "tests/common/temp_directory.h"
#include "tests/model_files/safetensors_bytes.h"

namespace rp {
namespace {

constexpr std::int64_t kRefusalTime = (test::kIsSanitized ? 2'000 : 100) * kNsPerMs;

// CPU time, because other tests may run on the same core.
std::int64_t thread_cpu_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * kNsPerSecond + time.tv_nsec;
}

struct BadFile {
  std::string what;
  std::string bytes;
  std::vector<std::string> message_parts;
};

std::string repeat(std::string_view piece, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += piece;
  return text;
}

BadFile bad_header(const std::string& what, const std::string& header, std::size_t data_bytes,
                   std::vector<std::string> parts) {
  return {what, safetensors_bytes(header, data_bytes), std::move(parts)};
}

// Returns a file with one tensor 'w', described by the given JSON, and 8 bytes of data.
BadFile bad_tensor(const std::string& what, const std::string& dtype, const std::string& shape,
                   const std::string& offsets, std::vector<std::string> parts) {
  parts.emplace_back("'w'");
  return bad_header(what, "{\"w\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}",
                    8, std::move(parts));
}

std::vector<BadFile> bad_lengths() {
  const std::string good = safetensors_bytes("{" + entry("w", "F32", "[2]", "[0,8]") + "}", 8);
  std::vector<BadFile> files;
  for (std::size_t bytes = 0; bytes < 8; ++bytes) {
    files.push_back({cat(bytes, " bytes"), good.substr(0, bytes), {cat("has ", bytes, " bytes, not even")}});
  }
  files.push_back({"length 0", little_endian(0), {"not a JSON object"}});
  files.push_back({"length 2^63", little_endian(std::uint64_t{1} << 63) + "{}", {"9223372036854775808"}});
  files.push_back({"length 2^64-1", little_endian(UINT64_MAX) + "{}", {"18446744073709551615"}});
  files.push_back({"length 2^64-8 (8 + length wraps)", little_endian(UINT64_MAX - 7) + "{}", {"18446744073709551608"}});
  files.push_back({"length beyond the file", little_endian(1000) + "{}", {"1000 bytes", "only 2 follow", "truncated"}});
  files.push_back({"length 100 000 001", little_endian(100'000'001) + "{}", {"100000001"}});
  files.push_back({"cut in the header", good.substr(0, 30), {"only 22 follow"}});
  files.push_back({"cut in the data", good.substr(0, good.size() - 1), {"need 8 bytes", "has 7", "truncated"}});
  files.push_back({"trailing bytes", good + "x", {"need 8 bytes", "has 9", "after the last tensor"}});
  return files;
}

std::vector<BadFile> bad_json() {
  const std::string w = entry("w", "U8", "[1]", "[0,1]");
  return {
      bad_header("not UTF-8", "{\"w\xff\":{}}", 0, {"not valid UTF-8"}),
      bad_header("lone surrogate", "{\"w\\ud800\":{}}", 0, {"not valid"}),
      bad_header("NUL in a name", "{\"w\\u0000\":{}}", 0, {"'w\\x00'", "printable ASCII"}),
      bad_header("raw NUL that ends the JSON early", "{" + w + "}" + std::string("\0{", 2), 1, {"NUL byte"}),
      bad_header("byte order mark", "\xef\xbb\xbf{" + w + "}", 1, {"not a JSON object"}),
      bad_header("array at the top", "[1]", 0, {"not a JSON object"}),
      bad_header("number at the top", "17", 0, {"not a JSON object"}),
      bad_header("something after the object", "{" + w + "}{}", 1, {"not valid JSON"}),
      bad_header("cut off", "{" + w, 1, {"not valid JSON"}),
      bad_header("nested 100 000 deep", "{\"w\":" + repeat("{\"dtype\":", 100'000), 0,
                 {"'w'", "dtype is not a string"}),
      bad_header("arrays 100 000 deep", "{\"w\":{\"shape\":" + repeat("[", 100'000), 0, {"'w'", "shape"}),
      bad_header("a million keys of no use", "{" + repeat("\"k\":0,", 1'000'000) + "\"k\":0}", 0, {"'k'"}),
      {"10 million keys", little_endian(70'000'000) + std::string(70'000'000, ' '), {"70000000 bytes"}},
      {"a string of 100 MB", little_endian(100'000'000) + "{\"", {"100000000 bytes"}},
      bad_header("a name of 1 MB", "{" + entry(std::string(1'000'000, 'a'), "U8", "[1]", "[0,1]") + "}", 1,
                 {"aaaa…'", "1024"}),
      bad_header("empty name", "{" + entry("", "U8", "[1]", "[0,1]") + "}", 1, {"''", "printable ASCII"}),
      bad_header("name with a way out", "{" + entry("../x", "U8", "[1]", "[0,1]") + "}", 1, {"'../x'", "slashes"}),
      bad_header("absolute name", "{" + entry("/etc/passwd", "U8", "[1]", "[0,1]") + "}", 1, {"'/etc/passwd'"}),
      bad_header("name that differs by Unicode normalisation", "{" + entry("\xc3\xa9", "U8", "[1]", "[0,1]") + "}", 1,
                 {"printable ASCII"}),
      bad_header("name twice, same value", "{" + w + "," + w + "}", 1, {"'w'", "twice"}),
      bad_header("name twice, other value", "{" + w + "," + entry("w", "U8", "[1]", "[1,2]") + "}", 2,
                 {"'w'", "twice"}),
      bad_header("name twice after unescaping", "{" + w + "," + entry("\\u0077", "U8", "[1]", "[1,2]") + "}", 2,
                 {"'w'", "twice"}),
      bad_header("metadata that is no string", "{\"__metadata__\":{\"a\":1}," + w + "}", 1, {"__metadata__", "string"}),
      bad_header("metadata that is no object", "{\"__metadata__\":\"a\"," + w + "}", 1, {"__metadata__"}),
      bad_header("metadata nested", "{\"__metadata__\":{\"a\":{}}," + w + "}", 1, {"__metadata__", "string"}),
      bad_header("metadata twice", "{\"__metadata__\":{},\"__metadata__\":{}," + w + "}", 1, {"__metadata__", "twice"}),
      bad_header("metadata key twice", "{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}," + w + "}", 1, {"'a'", "twice"}),
      bad_header("tensor that is no object", "{\"w\":[]}", 0, {"'w'", "not a JSON object"}),
      bad_header("unknown key", "{\"w\":{\"sparse\":true}}", 0, {"'w'", "'sparse'"}),
      bad_header("dtype twice", "{\"w\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0, {"'w'", "'dtype'", "twice"}),
      bad_header("no dtype", "{\"w\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, {"'w'", "no dtype"}),
      bad_header("no shape", "{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, {"'w'", "no shape"}),
      bad_header("no offsets", "{\"w\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, {"'w'", "no data_offsets"}),
  };
}

std::vector<BadFile> bad_dtypes_and_shapes() {
  std::vector<BadFile> files = {
      bad_tensor("unknown dtype", "\"F33\"", "[2]", "[0,8]", {"dtype 'F33' is not supported"}),
      bad_tensor("dtype in lower case", "\"f32\"", "[2]", "[0,8]", {"dtype 'f32' is not supported"}),
      bad_tensor("dtype as number", "3", "[2]", "[0,8]", {"dtype is not a string"}),
      bad_tensor("dtype null", "null", "[2]", "[0,8]", {"dtype is not a string"}),
      bad_tensor("shape as number", "\"F32\"", "2", "[0,8]", {"shape is not a list"}),
      bad_tensor("shape with a negative", "\"F32\"", "[-2]", "[0,8]", {"shape holds"}),
      bad_tensor("shape with minus zero", "\"F32\"", "[-0]", "[0,0]", {"shape holds"}),
      bad_tensor("shape with a float", "\"F32\"", "[2.0]", "[0,8]", {"shape holds"}),
      bad_tensor("shape with an exponent", "\"F32\"", "[1e3]", "[0,8]", {"shape holds"}),
      bad_tensor("shape with a string", "\"F32\"", "[\"2\"]", "[0,8]", {"shape holds"}),
      bad_tensor("shape nested", "\"F32\"", "[[2]]", "[0,8]", {"shape holds"}),
      bad_tensor("dimension 2^53+1", "\"U8\"", "[9007199254740993]", "[0,8]", {"9007199254740993"}),
      bad_tensor("dimension 2^64", "\"U8\"", "[18446744073709551616]", "[0,8]", {"shape holds"}),
      bad_tensor("65 dimensions", "\"F32\"", "[" + repeat("1,", 64) + "2]", "[0,8]", {"more than 64 dimensions"}),
      bad_tensor("product that wraps to 0", "\"U8\"", "[4294967296,4294967296]", "[0,0]", {"overflows"}),
      bad_tensor("product that wraps with a zero after", "\"U8\"", "[4294967296,4294967296,0]", "[0,0]", {"overflows"}),
      bad_tensor("product times size wraps", "\"F64\"", "[2147483648,1073741824]", "[0,0]", {"overflows"}),
      bad_tensor("more bytes than offsets", "\"F32\"", "[3]", "[0,8]", {"[3]", "need 12 bytes", "give it 8"}),
      bad_tensor("fewer bytes than offsets", "\"F32\"", "[1]", "[0,8]", {"[1]", "need 4 bytes", "give it 8"}),
  };
  for (const char* dtype : {"F8_E5M2", "F8_E8M0", "F6_E2M3", "F6_E3M2", "F4", "U16", "U32", "U64", "C64"}) {
    files.push_back(bad_tensor(cat("dtype ", dtype), cat('"', dtype, '"'), "[3]", "[0,3]",
                               {cat("dtype '", dtype, "' is not supported")}));
  }
  return files;
}

std::vector<BadFile> bad_offsets() {
  const auto two = [](const std::string& a, const std::string& b) {
    return "{" + entry("a", "U8", "[4]", a) + "," + entry("b", "U8", "[4]", b) + "}";
  };
  std::string same = "{";
  for (int i = 0; i < 100'000; ++i) same += (i > 0 ? "," : "") + entry(cat("t", i), "U8", "[8]", "[0,8]");
  return {
      bad_tensor("one offset", "\"F32\"", "[2]", "[8]", {"data_offsets has 1 entries"}),
      bad_tensor("three offsets", "\"F32\"", "[2]", "[0,8,8]", {"more than 2 entries"}),
      bad_tensor("descending offsets", "\"F32\"", "[2]", "[8,0]", {"end at 0, before their beginning at 8"}),
      bad_tensor("negative offset", "\"F32\"", "[2]", "[-8,0]", {"data_offsets hold"}),
      bad_tensor("float offset", "\"F32\"", "[2]", "[0,8.0]", {"data_offsets hold"}),
      bad_tensor("offsets no list", "\"F32\"", "[2]", "\"0,8\"", {"data_offsets is not a list"}),
      bad_header("offsets beyond the file", "{" + entry("w", "U8", "[16]", "[0,16]") + "}", 8, {"need 16", "has 8"}),
      bad_header("offset near 2^64", "{" + entry("w", "U8", "[1]", "[18446744073709551614,18446744073709551615]") + "}",
                 8, {"'w'", "hole"}),
      bad_header("overlap", two("[0,4]", "[3,7]"), 7, {"'b'", "begins at byte 3", "overlap"}),
      bad_header("hole at the beginning", two("[1,5]", "[5,9]"), 9, {"'a'", "begins at byte 1", "hole"}),
      bad_header("hole in the middle", two("[0,4]", "[5,9]"), 9, {"'b'", "begins at byte 5", "hole"}),
      bad_header("hole at the end", two("[0,4]", "[4,8]"), 9, {"need 8 bytes", "has 9"}),
      bad_header("same range twice", two("[0,4]", "[0,4]"), 4, {"overlap"}),
      bad_header("same range 100 000 times", same + "}", 8, {"overlap"}),
  };
}

TEST(Safetensors, EveryBadFileOfTheCorpusIsRefusedAtOnceWithFileAndRule) {
  const TempDirectory directory;
  std::vector<BadFile> corpus = bad_lengths();
  for (const auto& more : {bad_json(), bad_dtypes_and_shapes(), bad_offsets()}) {
    corpus.insert(corpus.end(), more.begin(), more.end());
  }
  ASSERT_GT(corpus.size(), 80U);
  for (BadFile& file : corpus) {
    SCOPED_TRACE(file.what);
    const auto path = directory.write("bad.safetensors", file.bytes);
    file.message_parts.emplace_back(path.string());
    const std::int64_t start = thread_cpu_ns();
    expect_refusal(file.message_parts, [&] { SafetensorsFile::open(path); });
    EXPECT_LT(thread_cpu_ns() - start, kRefusalTime);
  }
}

TEST(Safetensors, OnlyARegularFileIsOpenedAndNothingElseBlocks) {
  const TempDirectory directory;
  const auto open = [&](const char* name) { SafetensorsFile::open(directory.file(name)); };
  expect_refusal({"absent", "No such file"}, [&] { open("absent"); });
  ASSERT_EQ(mkfifo(directory.file("fifo").c_str(), 0600), 0);
  expect_refusal({"fifo", "not a regular file"}, [&] { open("fifo"); });
  std::filesystem::create_directory(directory.file("folder"));
  expect_refusal({"folder", "not a regular file"}, [&] { open("folder"); });
  std::filesystem::create_symlink("/dev/zero", directory.file("device"));
  expect_refusal({"device", "not a regular file"}, [&] { open("device"); });
  std::filesystem::create_symlink("loop", directory.file("loop"));
  expect_refusal({"loop", "symbolic links"}, [&] { open("loop"); });
}

TEST(Safetensors, TensorsAreReadWholeAndInPieces) {
  const TempDirectory directory;
  const std::string header = " {" + entry("b", "BF16", "[2,2]", "[4,12]") + ",\"__metadata__\":{\"format\":\"pt\"}," +
                             entry("a", "F32", "[]", "[0,4]") + "," + entry("empty", "I64", "[0,3]", "[4,4]") + "}  ";
  const auto file = SafetensorsFile::open(directory.write("good.safetensors", safetensors_bytes(header, 12)));
  ASSERT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(file.tensor("a").shape, std::vector<std::int64_t>());
  EXPECT_EQ(file.tensor("b").dtype, DType::kBFloat16);
  EXPECT_EQ(shape_text(file.tensor("b").shape), "[2, 2]");
  EXPECT_EQ(file.tensor("empty").bytes, 0U);
  std::string bytes(8, '?');
  file.read("b", bytes.data(), 8);
  EXPECT_EQ(bytes, "\x04\x05\x06\x07\x08\x09\x0a\x0b");
  file.read("b", bytes.data(), 2, 6);
  EXPECT_EQ(bytes.substr(0, 2), "\x0a\x0b");
  file.read("empty", nullptr, 0);
  expect_refusal({"good.safetensors", "no tensor 'c'"}, [&] { file.read("c", bytes.data(), 1); });
}

TEST(Safetensors, AFileThatShrinksWhileItIsReadIsAnErrorAndNotACrash) {
  const TempDirectory directory;
  const auto path =
      directory.write("shrinks.safetensors", safetensors_bytes("{" + entry("w", "U8", "[100]", "[0,100]") + "}", 100));
  const auto file = SafetensorsFile::open(path);
  std::filesystem::resize_file(path, 80);
  std::string bytes(100, '?');
  expect_refusal({path.string(), "ends at byte 80"}, [&] { file.read("w", bytes.data(), 100); });
}

}  // namespace
}  // namespace rp

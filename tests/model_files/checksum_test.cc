#include "common/checked_files/checksum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <utility>

#include "tests/common/expect_refusal.h"
#include "tests/common/temp_directory.h"

namespace rp {
namespace {

constexpr ChecksumKind kKinds[] = {ChecksumKind::kSha256, ChecksumKind::kXxh128};

std::string checksum_in_pieces(ChecksumKind kind, std::string_view text, std::size_t piece) {
  Checksum checksum(kind);
  for (std::size_t begin = 0; begin < text.size(); begin += piece) {
    checksum.add(text.data() + begin, std::min(piece, text.size() - begin));
  }
  return checksum.hex();
}

TEST(Checksum, IsThatOfTheTools) {
  // The values printed by: printf abc | sha256sum; printf abc | xxhsum -H2
  EXPECT_EQ(checksum_in_pieces(ChecksumKind::kSha256, "abc", 3),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(checksum_in_pieces(ChecksumKind::kXxh128, "abc", 3), "06b05ab6733a618578af5f94892f3950");
  for (const ChecksumKind kind : kKinds) {
    EXPECT_EQ(checksum_in_pieces(kind, "abcdefgh", 3), checksum_in_pieces(kind, "abcdefgh", 8));
  }
}

// A directory with two files and a list of their checksums.
class ListedFiles {
 public:
  explicit ListedFiles(ChecksumKind kind) : kind_(kind), directory_() {
    ChecksumList list(kind);
    for (const auto& [name, content] : {std::pair("one file", "1"), std::pair("two", "")}) {
      (void)directory_.write(name, content);
      list.add(name, checksum_in_pieces(kind, content, 1));
    }
    text_ = list.text();
    write_list(text_);
  }

  void write_list(const std::string& text) const { (void)directory_.write(ChecksumList::file_name(kind_), text); }
  void verify() const { ChecksumList::read(directory_.path(), kind_).verify(directory_.path()); }
  [[nodiscard]] const TempDirectory& directory() const { return directory_; }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  ChecksumKind kind_;
  TempDirectory directory_;
  std::string text_;
};

TEST(ChecksumList, NamesTheFileThatIsChangedMissingOrNotListed) {
  for (const ChecksumKind kind : kKinds) {
    const ListedFiles files(kind);
    files.verify();
    (void)files.directory().write("two", "x");
    expect_refusal({"two", "does not have its checksum", ChecksumList::file_name(kind)}, [&] { files.verify(); });
    std::filesystem::remove(files.directory().file("two"));
    expect_refusal({"two", "No such file"}, [&] { files.verify(); });
    expect_refusal({"three", "is not listed"},
                   [&] { ChecksumList::read(files.directory().path(), kind).expect("three", "00"); });
  }
}

TEST(ChecksumList, EveryChangeOfItsTextIsFound) {
  std::mt19937 random(1);
  for (const ChecksumKind kind : kKinds) {
    const ListedFiles files(kind);
    for (std::size_t place = 0; place < files.text().size(); ++place) {
      for (const char other : {'\0', '\n', ' ', '0', 'a', 'A', static_cast<char>(random())}) {
        std::string text = files.text();
        if (std::exchange(text[place], other) == other) continue;
        files.write_list(text);
        EXPECT_THAT(error_of([&] { files.verify(); }), testing::Ne("accepted")) << text;
      }
    }
    for (const std::string& text : {files.text() + "\n", "\n" + files.text(), files.text() + files.text(),
                                    files.text() + "x", "\r\n" + files.text()}) {
      files.write_list(text);
      expect_refusal({ChecksumList::file_name(kind), "line"}, [&] { files.verify(); });
    }
    std::filesystem::remove(files.directory().file(ChecksumList::file_name(kind)));
    expect_refusal({ChecksumList::file_name(kind), "No such file"}, [&] { files.verify(); });
  }
}

}  // namespace
}  // namespace rp

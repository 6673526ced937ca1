#include "train/output/event_file.h"

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <system_error>

#include "common/system/host_name.h"
#include "common/text.h"

namespace rp {
namespace {

static_assert(std::endian::native == std::endian::little, "event files are little endian");

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  constexpr std::uint32_t kPolynomial = 0x82f63b78;  // that of CRC-32C, its bits in reverse order
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[i] = value;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

template <typename Number>
std::string bytes_of(Number number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

// A field of a protocol buffer is a key (the field's number and kind) and a value.
enum class Kind : std::uint64_t { kVarint = 0, k64Bits = 1, kBytes = 2, k32Bits = 5 };

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

std::string key(int field, Kind kind) {
  return varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(kind));
}
std::string bytes_field(int field, const std::string& value) {
  return key(field, Kind::kBytes) + varint(value.size()) + value;
}
std::string varint_field(int field, std::uint64_t value) { return key(field, Kind::kVarint) + varint(value); }

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Returns fields 1 and 2, which every Event has: the current time and the step.
std::string event_at(std::int64_t step) {
  return key(1, Kind::k64Bits) + bytes_of(wall_seconds()) + varint_field(2, static_cast<std::uint64_t>(step));
}

}  // namespace

std::uint32_t masked_crc32c(const std::string& data) {
  std::uint32_t crc = UINT32_MAX;
  for (const char c : data) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

EventFile EventFile::create(const std::filesystem::path& directory, std::int64_t last_step) {
  // Readers process the files of a directory in the order of their names, so these begin with the
  // time.
  const std::string name = cat("events.out.tfevents.", static_cast<std::int64_t>(wall_seconds()), ".", host_name());
  std::filesystem::path path = directory / name;
  std::error_code ignored;
  for (int number = 1; std::filesystem::exists(std::filesystem::symlink_status(path, ignored)); ++number)
    path = directory / cat(name, ".", number);
  EventFile file(KeptFile::open(path));
  file.add_record(event_at(0) + bytes_field(3, "brain.Event:2"));
  constexpr std::uint64_t kStart = 1;
  file.add_record(event_at(last_step + 1) + bytes_field(7, varint_field(1, kStart)));
  return file;
}

void EventFile::add(std::int64_t step, const std::vector<std::pair<const char*, double>>& values) {
  std::string summary;
  for (const auto& [name, value] : values) {
    summary += bytes_field(1, bytes_field(1, name) + key(2, Kind::k32Bits) + bytes_of(static_cast<float>(value)));
  }
  add_record(event_at(step) + bytes_field(5, summary));
}

void EventFile::add_record(const std::string& event) {
  const std::string length = bytes_of(static_cast<std::uint64_t>(event.size()));
  file_.append(length + bytes_of(masked_crc32c(length)) + event + bytes_of(masked_crc32c(event)));
}

}  // namespace rp

#include "model_files/weights/safetensors.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "common/bad_input.h"
#include "common/check.h"

namespace rp {

static_assert(std::endian::native == std::endian::little, "safetensors files are little endian");

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  InputFile file = InputFile::open(path);
  std::uint64_t header_bytes = 0;
  if (file.size() < sizeof header_bytes) {
    throw bad_input(path, "has ", file.size(), " bytes, not even the 8 of a safetensors header length");
  }
  file.read_at(0, &header_bytes, sizeof header_bytes);
  const std::uint64_t rest = file.size() - sizeof header_bytes;
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    throw bad_input(path, "says that its header has ", header_bytes, " bytes; at most ", kMaxSafetensorsHeaderBytes,
                    " are read (is it a safetensors file?)");
  }
  if (header_bytes > rest) {
    throw bad_input(path, "says that its header has ", header_bytes, " bytes, but only ", rest,
                    " follow (is it truncated? fetch it again)");
  }
  std::string header(header_bytes, '\0');
  file.read_at(sizeof header_bytes, header.data(), header_bytes);
  TensorMap tensors = parse_safetensors_header(path, header, rest - header_bytes);
  return SafetensorsFile(std::move(file), sizeof header_bytes + header_bytes, std::move(tensors));
}

std::vector<std::string> SafetensorsFile::names_in_order() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& entry : tensors_) names.push_back(entry.first);
  std::ranges::stable_sort(names, {}, [&](const std::string& name) {
    const TensorInfo& info = tensors_.find(name)->second;
    return std::pair(info.offset, info.bytes);
  });
  return names;
}

std::string SafetensorsFile::header() const {
  std::string header(data_offset_ - sizeof(std::uint64_t), '\0');
  file_.read_at(sizeof(std::uint64_t), header.data(), header.size());
  return header;
}

const TensorInfo& SafetensorsFile::tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw bad_input(path(), "has no tensor ", quoted_name(name));
  return found->second;
}

void SafetensorsFile::read(std::string_view name, void* destination, std::uint64_t bytes, std::uint64_t first) const {
  const TensorInfo& info = tensor(name);
  RP_ASSERT(first <= info.bytes && bytes <= info.bytes - first);
  file_.read_at(data_offset_ + info.offset + first, destination, bytes);
}

}  // namespace rp

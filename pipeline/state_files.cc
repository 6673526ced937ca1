#include "pipeline/state_files.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "common/bad_input.h"
#include "common/text.h"
#include "pipeline/state_description.h"

namespace rp {

namespace {

constexpr char kPartMark = '@';  // between the name of a tensor and the first element of a part

std::uint64_t product(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1},
                         [](std::uint64_t a, std::int64_t b) { return a * static_cast<std::uint64_t>(b); });
}

// Splits the name of a part. The name of a whole tensor never ends with a mark and digits, because it
// ends with what it is: ".master".
std::pair<std::string, std::uint64_t> tensor_and_begin(const std::string& name) {
  const std::size_t mark = name.rfind(kPartMark);
  if (mark == std::string::npos) return {name, 0};
  std::uint64_t begin = 0;
  const char* const end = name.data() + name.size();
  const auto [parsed, error] = std::from_chars(name.data() + mark + 1, end, begin);
  if (parsed != end || error != std::errc()) return {name, 0};
  return {name.substr(0, mark), begin};
}

}  // namespace

std::string state_part_name(const std::string& tensor, bool is_whole, std::uint64_t begin) {
  return is_whole ? tensor : cat(tensor, kPartMark, begin);
}

StateFiles StateFiles::open(const std::filesystem::path& directory) {
  StateFiles state;
  state.directory_ = directory;
  const ChecksumList list = read_state_checksums(directory);
  for (const auto& [name, _] : list.entries()) {
    if (name != kStateDescriptionFile) state.files_.push_back(SafetensorsFile::open(directory / name));
  }
  for (const SafetensorsFile& file : state.files_) {
    for (const auto& [name, info] : file.tensors()) {
      const auto [tensor, begin] = tensor_and_begin(name);
      const auto [_, is_new] = state.parts_[tensor].try_emplace(
          begin, Part{.file = &file, .name = name, .num_elements = product(info.shape)});
      if (!is_new) throw bad_input(file.path(), "tensor ", name, " is in the state twice");
    }
  }
  return state;
}

void StateFiles::check(const std::vector<Tensor>& tensors) const {
  for (const Tensor& tensor : tensors) {
    const auto found = parts_.find(tensor.name);
    if (found == parts_.end()) throw bad_input(place(), "lacks tensor ", tensor.name);
    std::uint64_t end = 0;
    for (const auto& [begin, part] : found->second) {
      const TensorInfo& info = part.file->tensor(part.name);
      if (begin != end) throw bad_input(place(), "lacks elements of tensor ", tensor.name, " from ", end, " on");
      end += part.num_elements;
      const bool is_whole = part.name == tensor.name;
      if (info.dtype != tensor.dtype || (is_whole && info.shape != tensor.shape))
        throw bad_input(part.file->path(), "tensor ", tensor.name, " has another shape or dtype than in this model");
    }
    if (end != product(tensor.shape)) {
      throw bad_input(place(), "tensor ", tensor.name, " has ", end, " elements, in this model ",
                      product(tensor.shape));
    }
  }
  if (parts_.size() != tensors.size()) {
    throw bad_input(place(), "has ", parts_.size(), " tensors, this model's state ", tensors.size(),
                    ": it is of a larger model");
  }
}

void StateFiles::read(const std::string& tensor, std::uint64_t begin, std::uint64_t num_elements,
                      void* destination) const {
  const std::map<std::uint64_t, Part>& parts = parts_.at(tensor);
  auto* to = static_cast<std::byte*>(destination);
  for (auto part = std::prev(parts.upper_bound(begin)); num_elements > 0; ++part) {
    const std::uint64_t in_part = begin - part->first;
    const std::uint64_t num = std::min(num_elements, part->second.num_elements - in_part);
    const std::uint64_t bytes = dtype_bytes(part->second.file->tensor(part->second.name).dtype);
    part->second.file->read(part->second.name, to, num * bytes, in_part * bytes);
    to += num * bytes;
    begin += num;
    num_elements -= num;
  }
}

}  // namespace rp

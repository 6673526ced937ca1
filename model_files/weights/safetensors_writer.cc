#include "model_files/weights/safetensors_writer.h"

#include <nlohmann/json.hpp>

#include "common/check.h"

namespace rp {
namespace {

std::uint64_t file_bytes(std::string_view header, const std::vector<TensorDeclaration>& tensors) {
  std::uint64_t bytes = sizeof(std::uint64_t) + header.size();
  for (const TensorDeclaration& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

}  // namespace

std::uint64_t TensorDeclaration::bytes() const {
  std::uint64_t bytes = dtype_bytes(dtype);
  for (const std::int64_t dimension : shape) {
    RP_ASSERT(dimension >= 0 && !__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dimension), &bytes));
  }
  return bytes;
}

std::string safetensors_header(const std::vector<TensorDeclaration>& tensors,
                               const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json entries = nlohmann::ordered_json::object();
  if (!metadata.empty()) entries["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const TensorDeclaration& tensor : tensors) {
    RP_ASSERT(!entries.contains(tensor.name));
    const std::uint64_t end = offset + tensor.bytes();
    entries[tensor.name] = {
        {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string header = entries.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

SafetensorsWriter SafetensorsWriter::create(const std::filesystem::path& path, std::vector<TensorDeclaration> tensors,
                                            const std::map<std::string, std::string>& metadata, unsigned permissions) {
  const std::string header = safetensors_header(tensors, metadata);
  OutputFile file = OutputFile::create(path, file_bytes(header, tensors), nullptr, permissions);
  return SafetensorsWriter(std::move(file), std::move(tensors), header);
}

SafetensorsWriter SafetensorsWriter::create(const OutputDirectory& directory, const std::string& name,
                                            std::vector<TensorDeclaration> tensors) {
  const std::string header = safetensors_header(tensors);
  return create(directory, name, std::move(tensors), header);
}

SafetensorsWriter SafetensorsWriter::create(const OutputDirectory& directory, const std::string& name,
                                            std::vector<TensorDeclaration> tensors, std::string_view header,
                                            unsigned permissions) {
  OutputFile file = directory.create_file(name, file_bytes(header, tensors), permissions);
  return SafetensorsWriter(std::move(file), std::move(tensors), header);
}

SafetensorsWriter::SafetensorsWriter(OutputFile file, std::vector<TensorDeclaration> tensors, std::string_view header)
    : file_(std::move(file)), tensors_(std::move(tensors)) {
  const std::uint64_t header_bytes = header.size();
  file_.write(&header_bytes, sizeof header_bytes);
  file_.write(header.data(), header_bytes);
  skip_complete();
}

void SafetensorsWriter::write(std::string_view name, const void* data, std::uint64_t bytes) {
  if (bytes == 0) return;
  RP_ASSERT(current_ < tensors_.size() && tensors_[current_].name == name);
  RP_ASSERT(bytes <= tensors_[current_].bytes() - written_of_current_);
  file_.write(data, bytes);
  written_of_current_ += bytes;
  skip_complete();
}

void SafetensorsWriter::skip_complete() {
  while (current_ < tensors_.size() && written_of_current_ == tensors_[current_].bytes()) {
    ++current_;
    written_of_current_ = 0;
  }
}

void SafetensorsWriter::commit() {
  RP_ASSERT(current_ == tensors_.size());
  file_.commit();
}

}  // namespace rp

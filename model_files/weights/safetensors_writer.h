// model_files/weights/safetensors_writer.h
// Writes one safetensors file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/checked_files/output_directory.h"
#include "common/dtype.h"

namespace rp {

// A tensor that a file will contain.
struct TensorDeclaration {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;

  [[nodiscard]] std::uint64_t bytes() const;
};

// Returns the header of a file with these tensors, in this order. REQUIRES: names are distinct and
// valid (safetensors_header.h).
[[nodiscard]] std::string safetensors_header(const std::vector<TensorDeclaration>& tensors,
                                             const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

// Streams tensors into a new file: declare all tensors, write each in the declared order in any
// number of pieces, then commit. It buffers no data. Every failure throws rp::Error (kOutputFailed)
// with the path, the reason and the number of bytes that the file needs. If the file system
// supports it, space is reserved at the start, so that a full disk is reported before any data is
// written.
class SafetensorsWriter {
 public:
  // Writes the header. Fails if the file exists. REQUIRES: as for safetensors_header(); the widest
  // dtypes come first if alignment matters to readers.
  static SafetensorsWriter create(const std::filesystem::path& path, std::vector<TensorDeclaration> tensors,
                                  const std::map<std::string, std::string>& metadata = {{"format", "pt"}},
                                  unsigned permissions = OutputFile::kAnyonesPermissions);

  // Creates a file of this name in `directory`.
  static SafetensorsWriter create(const OutputDirectory& directory, const std::string& name,
                                  std::vector<TensorDeclaration> tensors);
  // The same with a given header and given permissions. REQUIRES: the header describes these
  // tensors, and their data are in this order.
  static SafetensorsWriter create(const OutputDirectory& directory, const std::string& name,
                                  std::vector<TensorDeclaration> tensors, std::string_view header,
                                  unsigned permissions = OutputFile::kAnyonesPermissions);

  // Writes the next `bytes` bytes of tensor `name`. REQUIRES: `name` is the next incomplete tensor
  // in the declared order, and the bytes fit into it.
  void write(std::string_view name, const void* data, std::uint64_t bytes);

  // Flushes the file to disk and closes it. REQUIRES: every tensor is complete.
  void commit();

 private:
  // Writes the header.
  SafetensorsWriter(OutputFile file, std::vector<TensorDeclaration> tensors, std::string_view header);

  // Advances to the next tensor that is not complete.
  void skip_complete();

  OutputFile file_;
  std::vector<TensorDeclaration> tensors_;
  std::size_t current_ = 0;
  std::uint64_t written_of_current_ = 0;
};

}  // namespace rp

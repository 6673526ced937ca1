// model_files/weights/safetensors_writer.h
// One safetensors file, for writing.
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

// A tensor that a file will hold.
struct TensorDeclaration {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;

  [[nodiscard]] std::uint64_t bytes() const;
};

// The header of a file of these tensors, in this order. REQUIRES: names are distinct and good (safetensors_header.h).
[[nodiscard]] std::string safetensors_header(const std::vector<TensorDeclaration>& tensors,
                                             const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

// Streams tensors into a new file: declare all, write each in the declared order in as many pieces as you like, commit.
// Holds no data. Every failure throws rp::Error (kOutputFailed) with path, reason and the bytes that the file needs;
// space is reserved at the start where the file system can, so that a full disk is known before the work.
class SafetensorsWriter {
 public:
  // Writes the header. Fails if the file exists.
  // REQUIRES: as safetensors_header(); widest dtypes first, if alignment matters to readers.
  static SafetensorsWriter create(const std::filesystem::path& path, std::vector<TensorDeclaration> tensors);

  // A file of that name in `directory`.
  static SafetensorsWriter create(const OutputDirectory& directory, const std::string& name,
                                  std::vector<TensorDeclaration> tensors);
  // The same with a header and permissions from elsewhere. REQUIRES: the header describes these tensors, whose data are
  // in this order.
  static SafetensorsWriter create(const OutputDirectory& directory, const std::string& name,
                                  std::vector<TensorDeclaration> tensors, std::string_view header,
                                  unsigned permissions = OutputFile::kAnyonesPermissions);

  // The next `bytes` of tensor `name`. REQUIRES: it is that tensor's turn and the bytes fit into it.
  void write(std::string_view name, const void* data, std::uint64_t bytes);

  // Flushes to disk and closes. REQUIRES: every tensor is complete.
  void commit();

 private:
  // Writes the header.
  SafetensorsWriter(OutputFile file, std::vector<TensorDeclaration> tensors, std::string_view header);

  // Moves on to the next tensor that wants data.
  void skip_complete();

  OutputFile file_;
  std::vector<TensorDeclaration> tensors_;
  std::size_t current_ = 0;
  std::uint64_t written_of_current_ = 0;
};

}  // namespace rp

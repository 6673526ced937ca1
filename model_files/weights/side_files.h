// model_files/weights/side_files.h
// Finds the small files next to a model's weights that a model derived from it needs too:
// tokenizer, templates, licence.
#pragma once

#include <string>
#include <vector>

#include "common/files/input_file.h"
#include "model_files/weights/weight_files.h"

namespace rp {

struct SideFile {
  std::string name;  // in the model's folder
  InputFile file;
};

// The files in a model's folder other than its weight files, their index and config.json.
struct SideFiles {
  std::vector<SideFile> copied;       // in order of name
  std::vector<std::string> left_out;  // names, in order
};

// Opens the side files of the model that `weights` belongs to. It opens files with the names that
// Hugging Face's tools read, and licences, if they are regular files of at most 128 MiB inside the
// folder. A link that leads out of the folder is left out, except into the blobs of the hub's cache
// that the folder belongs to. Hidden files are left out and not even listed.
[[nodiscard]] SideFiles find_side_files(const WeightFiles& weights);

}  // namespace rp

// model_files/weights/side_files.h
// The small files beside a model's weights that a model made from it needs, too: tokenizer, templates, licence.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/files/input_file.h"
#include "model_files/weights/weight_files.h"

namespace rp {

struct SideFile {
  std::string name;  // in the model's folder
  InputFile file;
};

// What lies in a model's folder besides its weight files, their index and config.json.
struct SideFiles {
  std::vector<SideFile> copied;       // in order of name
  std::vector<std::string> left_out;  // names, in order
};

// Opens the side files of the model that `weights` are of. Taken are files of the names that Hugging Face's tools read,
// and licences, of at most 128 MiB, that are regular and inside the folder. A link that leads out of it is left out,
// except into the blobs of the hub's cache that the folder belongs to; so are hidden files, which are not even listed.
[[nodiscard]] SideFiles find_side_files(const WeightFiles& weights);

}  // namespace rp

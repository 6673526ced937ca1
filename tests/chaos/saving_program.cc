// Does the same file operations as a run of `train`, in milliseconds: after each of three steps it
// writes a checkpoint, of which two are kept; then it writes the trained model and replaces a small
// file. If it is run again, it continues from the newest checkpoint. Usage: saving_program OUTPUT
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/checked_files/checksum.h"
#include "common/checked_files/output_directory.h"
#include "common/files/input_file.h"
#include "common/files/output_file.h"
#include "common/program_main.h"
#include "common/text.h"
#include "model_files/weights/safetensors_writer.h"
#include "train/output/standard_output.h"
#include "train/run/run_directory.h"

namespace {

constexpr std::int64_t kSteps = 3;

void write_tensors(const rp::OutputDirectory& directory, const std::string& name, std::int64_t step) {
  const std::vector<float> values(1000, static_cast<float>(step));
  const std::uint64_t bytes = values.size() * sizeof(float);
  rp::SafetensorsWriter writer = rp::SafetensorsWriter::create(
      directory, name, {{"a", rp::DType::kFloat32, {1000}}, {"b", rp::DType::kFloat32, {10, 100}}});
  writer.write("a", values.data(), bytes);
  writer.write("b", values.data(), bytes);
  writer.commit();
}

void delete_old_checkpoints(const rp::RunDirectory& run) {
  const std::vector<std::int64_t> steps = run.checkpoints();
  for (std::size_t i = 0; i + 2 < steps.size(); ++i) rp::OutputDirectory::remove(run.checkpoint(steps[i]));
}

void save_checkpoint(const rp::RunDirectory& run, std::int64_t step) {
  rp::set_direct_writes_from(step == 2 ? 1
                                       : UINT64_MAX);  // one checkpoint uses direct writes, as those of large models do
  rp::OutputDirectory::make(run.checkpoint(step), rp::ChecksumKind::kXxh128, [&](const rp::OutputDirectory& directory) {
    write_tensors(directory, "state.safetensors", step);
    directory.write_file("state.json", rp::cat("{\"step\": ", step, "}\n"));
  });
  delete_old_checkpoints(run);
  rp::print(rp::cat("checkpoint of step ", step, " written\n"));
}

int save(const std::filesystem::path& output) {
  const rp::RunDirectory run(output);
  run.create();
  std::int64_t step = 0;
  if (const std::vector<std::int64_t> saved = run.checkpoints(); !saved.empty()) {
    step = saved.back();
    rp::ChecksumList::read(run.checkpoint(step), rp::ChecksumKind::kXxh128).verify(run.checkpoint(step));
    delete_old_checkpoints(run);
  }
  while (step < kSteps) save_checkpoint(run, ++step);
  rp::replace_file(output / "notes.txt", "first\n");
  rp::replace_file(output / "notes.txt", "second\n");
  if (!run.has_final_model()) {
    rp::OutputDirectory::make(run.final_model(), rp::ChecksumKind::kSha256, [&](const rp::OutputDirectory& directory) {
      write_tensors(directory, "model.safetensors", step);
      directory.copy_in(rp::InputFile::open(output / "notes.txt"), "notes.txt");
    });
  }
  rp::check_printed();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return rp::run_program("saving_program", [&] { return argc == 2 ? save(argv[1]) : 2; });
}

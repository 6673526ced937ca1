#include "hoststore/task_file/task_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "common/bad_input.h"
#include "common/checked_files/json_file.h"
#include "common/text.h"
#include "hoststore/arena_allocator.h"
#include "hoststore/boundary.h"
#include "hoststore/data_checksum.h"
#include "hoststore/task_rows.h"
#include "model_files/weights/safetensors.h"
#include "model_files/weights/safetensors_writer.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr std::size_t kMaxTensors = 1 << 20;  // of a block; a file that says more is damaged
constexpr const char* kVersionKey = "roundpipe_task";
constexpr const char* kCommandTensor = "command";
constexpr const char* kLossScaleTensor = "loss_scale";
constexpr std::array<const char*, kBlockKinds> kKindNames = {"activation", "gradient", "recompute",     "buffers",
                                                             "arguments",  "inputs",   "loss_arguments"};

// A tensor of the file and the memory that it is written from.
struct Entry {
  TensorDeclaration declaration;
  const void* data;
};

// One block that the task reads. `row`: of the task's own round, also if another round made the block.
struct InputBlock {
  BlockRow row;
  int microbatch;
  BlockPlace place;

  [[nodiscard]] std::string name() const {
    return cat(kKindNames[static_cast<std::size_t>(row.kind)], ".", row.index, ".", microbatch);
  }
};

std::vector<InputBlock> input_blocks(Store& store, const Command& command) {
  std::vector<InputBlock> blocks;
  for (const BlockRow& row : input_rows(command, store.catalogue())) {
    const MadeRow made = made_row(store, command, row);
    for (int microbatch = 0; microbatch < (is_once_a_task(row.kind) ? 1 : command.num_microbatches); ++microbatch) {
      const BlockPlace& place = made.table.place(made.row.kind, made.row.index, microbatch);
      if (place.bytes > 0) blocks.push_back({row, microbatch, place});
    }
  }
  return blocks;
}

std::string printable_name(std::string name) {
  for (char& c : name) {
    if (c <= ' ' || c > '~' || c == '/' || c == '\\') c = '_';
  }
  return name;
}

// One parameter of the task's layers.
struct Weights {
  std::string name;
  const TensorRecord* record;
  std::span<std::byte> data;  // in the working copy that the task computes with
};

std::vector<Weights> weights_of(Store& store, const Command& command) {
  std::vector<Weights> weights;
  const Catalogue& catalogue = store.catalogue();
  for (int layer = command.first_layer; layer < command.end_layer; ++layer) {
    int number = 0;
    for (const TensorRecord& record : catalogue.tensors_of(command.catalogue_layer(layer))) {
      const GroupId group = catalogue.uses()[record.use].group;
      const WeightGroupRecord& of = catalogue.weight_groups()[group];
      const std::span<std::byte> copy = store.working_copy(group, of.version_in(command.version));
      weights.push_back({.name = cat("weights.", layer, ".", number++, ".", printable_name(record.name.data())),
                         .record = &record,
                         .data = copy.subspan(record.element_offset * dtype_bytes(of.dtype), record.desc.bytes())});
    }
  }
  return weights;
}

std::vector<std::int64_t> shape_of(const TensorDesc& desc) {
  return {desc.shape.begin(), desc.shape.begin() + desc.rank};
}

double loss_scale_of(Store& store, const Command& command) {
  return store.loss_scale(command.pipeline).scales[LossScaleRecord::place_of(command.version)];
}

std::uint64_t checksum_of(const Command& command) { return DataChecksum::of(std::as_bytes(std::span(&command, 1))); }

// Adds the tensors of a block and its structure to `entries`. Returns what the file's metadata says of it.
json add_block(const InputBlock& block, const std::byte* data, std::vector<Entry>& entries) {
  const BlockHead head = read_block_head(data, block.place.bytes);
  const std::vector<TensorView> tensors = head.views(data + head.data_offset);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].desc.is_absent()) continue;
    entries.push_back({{cat(block.name(), ".", i), tensors[i].desc.dtype, shape_of(tensors[i].desc)}, tensors[i].data});
  }
  const auto structure_bytes = static_cast<std::int64_t>(head.structure.size());
  entries.push_back({{block.name() + ".structure", DType::kUInt8, {structure_bytes}}, head.structure.data()});
  return {{"kind", kKindNames[static_cast<std::size_t>(block.row.kind)]},
          {"index", block.row.index},
          {"microbatch", block.microbatch},
          {"tensors", tensors.size()}};
}

// An open file whose metadata are read.
struct OpenFile {
  SafetensorsFile file;
  json metadata;

  static OpenFile open(const std::filesystem::path& path) {
    SafetensorsFile file = SafetensorsFile::open(path);
    json metadata = parse_json_file(path, file.header())["__metadata__"];
    if (!metadata.is_object() || metadata.value(kVersionKey, "") != std::to_string(kVersion) ||
        metadata.value("control_version", "") != std::to_string(kControlVersion)) {
      throw bad_input(path, "is not a task of this version of RoundPipe");
    }
    return {std::move(file), std::move(metadata)};
  }

  [[nodiscard]] std::string text(const char* key) const { return metadata.at(key).get<std::string>(); }
  [[nodiscard]] json parsed(const char* key) const { return json::parse(text(key)); }
};

// Calls `read`, and says of missing or odd metadata that the file is damaged.
template <typename Read>
auto read_metadata(const std::filesystem::path& path, Read&& read) {
  try {
    return read();
  } catch (const json::exception& error) {
    throw bad_input(path, "is damaged: ", error.what());
  }
}

// Reads a tensor of the file, which must have this many bytes.
void read_whole(const OpenFile& open, const std::string& name, void* to, std::uint64_t bytes) {
  if (open.file.tensor(name).bytes != bytes) {
    throw bad_input(open.file.path(), name, " has ", open.file.tensor(name).bytes, " bytes, but the program needs ",
                    bytes, "; it is not the program, or not the model, of this task");
  }
  open.file.read(name, to, bytes);
}

// Copies a block of the file to the store's own arena.
void load_block(const OpenFile& open, const json& entry, const Command& command, Store& store, ArenaAllocator& arena) {
  const std::string kind = entry.at("kind");
  const auto found = std::find(kKindNames.begin(), kKindNames.end(), kind);
  if (found == kKindNames.end()) throw bad_input(open.file.path(), "is damaged: no block is of kind ", kind);
  const InputBlock block{.row = {static_cast<BlockKind>(found - kKindNames.begin()), entry.at("index")},
                         .microbatch = entry.at("microbatch"),
                         .place = {}};
  const std::vector<BlockRow> rows = input_rows(command, store.catalogue());
  const auto num_tensors = entry.at("tensors").get<std::size_t>();
  if (std::find(rows.begin(), rows.end(), block.row) == rows.end() || block.microbatch < 0 ||
      block.microbatch >= command.num_microbatches || num_tensors > kMaxTensors) {
    throw bad_input(open.file.path(), "is damaged: the task does not read the block ", block.name());
  }
  std::vector<TensorView> views(num_tensors);
  for (std::size_t i = 0; i < views.size(); ++i) {
    const auto tensor = open.file.tensors().find(cat(block.name(), ".", i));
    if (tensor == open.file.tensors().end()) continue;
    const std::vector<std::int64_t>& shape = tensor->second.shape;
    if (shape.size() > kMaxRank) throw bad_input(open.file.path(), tensor->first, " has too many dimensions");
    views[i].desc.dtype = tensor->second.dtype;
    views[i].desc.rank = static_cast<std::int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), views[i].desc.shape.begin());
  }
  std::vector<std::byte> structure(open.file.tensor(block.name() + ".structure").bytes);
  open.file.read(block.name() + ".structure", structure.data(), structure.size());
  const BlockLayout layout = lay_out_block(views, structure.size());
  const std::uint64_t offset = arena.allocate(layout.bytes);
  std::byte* const data = store.arena(kCoordinatorArena).data(offset, layout.bytes);
  write_block_head(data, layout, structure);
  for (std::size_t i = 0; i < views.size(); ++i) {
    const TensorDesc& desc = layout.tensors[i];
    if (!desc.is_absent()) read_whole(open, cat(block.name(), ".", i), data + desc.offset, desc.bytes());
  }
  store.round_table(command).place(block.row.kind, block.row.index, block.microbatch) = {
      .slot = {}, .arena = kCoordinatorArena, .offset = offset, .bytes = layout.bytes};
}

}  // namespace

std::string task_text(const Command& command) {
  const std::string round =
      command.round < kFirstEvaluation ? cat(", round ", command.round, ", step ", command.step) : " of an evaluation";
  const std::string layers = command.end_layer == command.first_layer + 1
                                 ? cat("layer ", command.first_layer)
                                 : cat("layers ", command.first_layer, "-", command.end_layer - 1);
  return cat("the ", phase_name(command.phase), " stage of ", layers, round);
}

void write_task_file(const std::filesystem::path& path, Store& store, const Command& command,
                     const TaskFileInfo& info) {
  const double loss_scale = loss_scale_of(store, command);
  std::vector<Entry> entries;
  entries.push_back({{kLossScaleTensor, DType::kUInt8, {sizeof loss_scale}}, &loss_scale});
  entries.push_back({{kCommandTensor, DType::kUInt8, {sizeof command}}, &command});
  for (const Weights& each : weights_of(store, command))
    entries.push_back({{each.name, each.record->desc.dtype, shape_of(each.record->desc)}, each.data.data()});
  json blocks = json::array();
  for (const InputBlock& block : input_blocks(store, command))
    blocks.push_back(add_block(block, store.block_data(block.place), entries));
  const std::map<std::string, std::string> metadata = {
      {kVersionKey, std::to_string(kVersion)},
      {"control_version", std::to_string(kControlVersion)},
      {"program", info.program.string()},
      {"arguments", json(info.arguments).dump()},
      {"directory", info.directory.string()},
      {"variables", json(info.variables).dump()},
      {"fingerprint", std::to_string(info.fingerprint)},
      {"task", info.task},
      {"command_checksum", std::to_string(checksum_of(command))},
      {"blocks", blocks.dump()},
  };
  std::vector<TensorDeclaration> declarations;
  for (const Entry& entry : entries) declarations.push_back(entry.declaration);
  std::filesystem::path partial = path;
  partial += ".partial";
  std::error_code ignored;
  std::filesystem::remove(partial, ignored);
  try {
    // It contains training data, and may be in a directory that others may read.
    SafetensorsWriter writer =
        SafetensorsWriter::create(partial, declarations, metadata, OutputFile::kOwnersPermissions);
    for (const Entry& entry : entries) writer.write(entry.declaration.name, entry.data, entry.declaration.bytes());
    writer.commit();
    std::filesystem::rename(partial, path);
  } catch (const std::filesystem::filesystem_error& error) {
    std::filesystem::remove(partial, ignored);
    throw Error(ExitCode::kOutputFailed, error.what());
  } catch (...) {
    std::filesystem::remove(partial, ignored);
    throw;
  }
}

TaskFileInfo read_task_info(const std::filesystem::path& path) {
  const OpenFile open = OpenFile::open(path);
  return read_metadata(path, [&] {
    TaskFileInfo info{.program = open.text("program"),
                      .arguments = open.parsed("arguments"),
                      .directory = open.text("directory"),
                      .variables = open.parsed("variables"),
                      .fingerprint = 0,
                      .task = open.text("task")};
    const std::string number = open.text("fingerprint");
    if (std::from_chars(number.data(), number.data() + number.size(), info.fingerprint).ec != std::errc())
      throw bad_input(path, "is damaged: its fingerprint is ", number);
    return info;
  });
}

Command load_task(const std::filesystem::path& path, Store& store) {
  const OpenFile open = OpenFile::open(path);
  Command command;
  read_whole(open, kCommandTensor, &command, sizeof command);
  if (read_metadata(path, [&] { return open.text("command_checksum"); }) != std::to_string(checksum_of(command)))
    throw bad_input(path, "is damaged: its command does not match its checksum");
  const Catalogue& catalogue = store.catalogue();
  const auto num_layers = static_cast<std::uint32_t>(catalogue.num_layers());
  if (command.pipeline >= catalogue.pipelines().size() || command.first_layer < 0 ||
      command.first_layer >= command.end_layer || command.layer_base.value() > num_layers ||
      static_cast<std::uint32_t>(command.end_layer) > num_layers - command.layer_base.value()) {
    throw bad_input(path, "has a task of layers ", command.first_layer, "-", command.end_layer - 1,
                    ", which the program does not have");
  }
  ArenaAllocator arena(store.arena(kCoordinatorArena));
  const RoundShape shape{.num_layers = catalogue.pipelines()[command.pipeline].num_layers,
                         .num_microbatches = static_cast<std::uint32_t>(command.num_microbatches),
                         .num_uses = static_cast<std::uint32_t>(catalogue.uses().size()),
                         .is_checked = store.header().checks_consistency};
  command.table_bytes = RoundTable::bytes(shape);
  command.table = arena.allocate(command.table_bytes);
  RoundTable::create(store.arena(kCoordinatorArena).data(command.table, command.table_bytes), shape);
  command.slot = {};
  command.first_event = {};
  for (const Weights& each : weights_of(store, command)) {
    read_whole(open, each.name, each.data.data(), each.data.size());
    const UseRecord& use = catalogue.uses()[each.record->use];
    const WeightGroupRecord& group = catalogue.weight_groups()[use.group];
    store.published(use.group).publish(group.version_in(command.version));
    store.gradient_released(each.record->use).publish(command.released_before);
  }
  LossScaleRecord& scale = store.loss_scale(command.pipeline);
  read_whole(open, kLossScaleTensor, &scale.scales[LossScaleRecord::place_of(command.version)], sizeof(double));
  scale.version.publish(command.version);
  read_metadata(path, [&] {
    for (const json& entry : open.parsed("blocks")) load_block(open, entry, command, store, arena);
    return 0;
  });
  return command;
}

}  // namespace rp

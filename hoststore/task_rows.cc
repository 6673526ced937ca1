#include "hoststore/task_rows.h"

#include <algorithm>

#include "hoststore/store.h"

namespace rp {

namespace {

void add_buffers(const Command& command, const Catalogue& catalogue, std::vector<BlockRow>& rows) {
  for (int layer = command.first_layer; layer < command.end_layer; ++layer) {
    if (catalogue.layers()[command.catalogue_layer(layer)].num_buffers > 0)
      rows.push_back({BlockKind::kBuffers, layer});
  }
}

}  // namespace

std::vector<BlockRow> input_rows(const Command& command, const Catalogue& catalogue) {
  std::vector<BlockRow> rows;
  add_buffers(command, catalogue, rows);
  rows.push_back({BlockKind::kActivation, command.first_layer});
  if (command.phase == Phase::kBackward) {
    if (command.has(Command::kGrainLayer)) {
      for (int layer = command.first_layer + 1; layer < command.end_layer; ++layer)
        rows.push_back({BlockKind::kActivation, layer});
    }
    for (int layer = command.first_layer; layer < command.end_layer; ++layer)
      rows.push_back({BlockKind::kRecompute, layer});
  }
  if (command.runs_loss()) rows.push_back({BlockKind::kArguments, 0});
  for (int i = 0; command.first_layer == 0 && i < command.num_input_imports; ++i)
    rows.push_back({BlockKind::kInputImport, i});
  for (int i = 0; command.runs_loss() && i < command.num_argument_imports; ++i) {
    rows.push_back({BlockKind::kArgumentImport, i});
  }
  if (command.phase == Phase::kBackward) rows.push_back({BlockKind::kGradient, command.end_layer});
  return rows;
}

std::vector<BlockRow> output_rows(const Command& command, const Catalogue& catalogue) {
  std::vector<BlockRow> rows;
  if (command.phase != Phase::kBackward) {
    for (int boundary = command.first_layer + 1; boundary <= command.end_layer; ++boundary) {
      if (command.saves(boundary)) rows.push_back({BlockKind::kActivation, boundary});
    }
    if (command.phase == Phase::kForward && command.has(Command::kSavesForRecompute)) {
      for (int layer = std::max(command.first_layer, command.first_trained_layer); layer < command.end_layer; ++layer) {
        rows.push_back({BlockKind::kRecompute, layer});
      }
    }
    if (command.round_mode == RoundMode::kTrain) add_buffers(command, catalogue, rows);
  }
  if (command.phase != Phase::kForward && command.wants_input_gradient()) {
    rows.push_back({BlockKind::kGradient, command.first_layer});
  }
  return rows;
}

MadeRow made_row(Store& store, const Command& command, const BlockRow& row) {
  const RoundTable table = store.round_table(command);
  const BlockOrigin& origin = table.origin(row.kind, row.index);
  if (origin.table_bytes == 0) return {row, table};
  return {{origin.kind, origin.index}, store.round_table(origin)};
}

}  // namespace rp

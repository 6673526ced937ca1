#include "coordinator/rounds/pipeline_buffers.h"

namespace rp {

void PipelineBuffers::replace(std::map<int, BlockOfRound>& kept, int layer, const BlockOfRound& block) {
  RoundBlocks::keep(block);
  if (const auto old = kept.find(layer); old != kept.end()) blocks_.release(old->second);
  kept[layer] = block;
}

void PipelineBuffers::set(int layer, const BlockOfRound& block) {
  replace(newest_, layer, block);
  replace(of_step_, layer, block);
}

std::vector<BlockOfRound> PipelineBuffers::enter(const std::shared_ptr<Round>& round) {
  std::vector<BlockOfRound> old;
  for (auto& [layer, block] : newest_) {
    const BlockRow row{BlockKind::kBuffers, layer};
    RoundBlocks::set_origin(*round, row, block);
    if (round->traits.mode != RoundMode::kTrain) continue;
    old.push_back(block);
    block = {round, row};
    RoundBlocks::keep(block);
  }
  return old;
}

void PipelineBuffers::end_step() {
  for (const auto& [layer, block] : newest_) replace(of_step_, layer, block);
}

}  // namespace rp

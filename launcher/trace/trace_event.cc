#include "launcher/trace/trace_event.h"

#include <algorithm>
#include <array>

#include "common/text.h"
#include "hoststore/control.h"

namespace rp {

namespace {

std::int64_t slot_number(std::int64_t slot) {
  return slot < 0 ? -1 : static_cast<std::int64_t>(SlotInEpoch(static_cast<std::uint64_t>(slot)).number().value());
}

// Computes in 64 bits, because a process that wrote to wrong addresses may have left any numbers.
std::string layers_text(const TraceRecord& r) {
  const std::int64_t last = std::int64_t{r.end_layer} - 1;
  return last == r.first_layer ? cat(last) : cat(r.first_layer, "-", last);
}

std::string microbatch_text(const TraceRecord& r) { return r.microbatch < 0 ? "" : cat(" m", r.microbatch); }

std::string block_text(const TraceRecord& r) {
  switch (static_cast<BlockKind>(r.detail)) {
    case BlockKind::kActivation: return cat("activation ", r.first_layer, microbatch_text(r));
    case BlockKind::kGradient: return cat("gradient ", r.first_layer, microbatch_text(r));
    case BlockKind::kRecompute: return cat("recompute data ", r.first_layer, microbatch_text(r));
    case BlockKind::kBuffers: return cat("buffers ", r.first_layer);
    case BlockKind::kArguments: return cat("loss arguments", microbatch_text(r));
    case BlockKind::kInputImport: return cat("input list ", r.first_layer, microbatch_text(r));
    case BlockKind::kArgumentImport: return cat("argument list ", r.first_layer, microbatch_text(r));
  }
  return "block";
}

std::string update_text(const char* what, const TraceRecord& r) { return cat(what, layers_text(r)); }

// Returns "forward", "fused", "recompute" or "backward".
const char* part_name(const TraceRecord& r) {
  return r.kind == TraceKind::kRecompute ? "recompute" : phase_name(static_cast<Phase>(r.detail));
}

void add_round(JsonText& out, const TraceRecord& r) {
  constexpr auto kFirst = static_cast<std::int64_t>(kFirstEvaluation);
  const std::int64_t round = r.numbers[0];
  if (round >= kFirst) {
    out.field("evaluation", round - kFirst);
  } else {
    out.field("round", round);
  }
  out.field("step", r.numbers[1]);
}

void add_layers(JsonText& out, const TraceRecord& r) {
  out.field("first_layer", r.first_layer).field("end_layer", r.end_layer);
}

std::string wait_text(const TraceRecord& r) {
  return Wait{.kind = static_cast<WaitKind>(r.detail), .slot = r.slot, .numbers = r.numbers}.text();
}

}  // namespace

const char* trace_category(TraceKind kind) {
  switch (kind) {
    case TraceKind::kTask: return "task";
    case TraceKind::kCompute:
    case TraceKind::kRecompute: return "compute";
    case TraceKind::kUploadInput:
    case TraceKind::kUploadWeights: return "upload";
    case TraceKind::kDownloadOutput:
    case TraceKind::kDownloadGradient: return "download";
    case TraceKind::kWait: return "wait";
    case TraceKind::kAcceptRound:
    case TraceKind::kCopyInputs: return "accept";
    case TraceKind::kCommit: return "commit";
    case TraceKind::kUpdate:
    case TraceKind::kAddGradient:
    case TraceKind::kNorm: return "update";
    case TraceKind::kNone: break;
  }
  return nullptr;  // a kind of a later version
}

std::string trace_event_name(const TraceRecord& r) {
  const auto round = [&r] { return round_text(r.numbers[0]); };
  switch (r.kind) {
    case TraceKind::kTask: return cat("task ", part_name(r), " ", layers_text(r));
    case TraceKind::kCompute:
    case TraceKind::kRecompute: return cat(part_name(r), " ", layers_text(r), microbatch_text(r));
    case TraceKind::kUploadInput:
    case TraceKind::kDownloadOutput: return block_text(r);
    case TraceKind::kUploadWeights: return cat("weights ", layers_text(r));
    case TraceKind::kDownloadGradient: return cat("weight gradient ", layers_text(r));
    case TraceKind::kWait: return cat("wait for ", wait_text(r));
    case TraceKind::kAcceptRound: return cat("accept ", round());
    case TraceKind::kCopyInputs: return cat("copy inputs of ", round());
    case TraceKind::kCommit: return cat("commit slot ", slot_number(r.slot));
    case TraceKind::kUpdate: return r.numbers[2] < 0 ? "update by function" : update_text("update ", r);
    case TraceKind::kAddGradient: return update_text("add gradient ", r);
    case TraceKind::kNorm: return update_text("norm ", r);
    case TraceKind::kNone: break;
  }
  return "";
}

void add_trace_arguments(JsonText& out, const TraceRecord& r) {
  if (r.slot >= 0) out.field("slot", slot_number(r.slot));
  switch (r.kind) {
    case TraceKind::kTask:
    case TraceKind::kCompute:
    case TraceKind::kRecompute:
      add_round(out, r);
      out.field("phase", part_name(r));
      add_layers(out, r);
      if (r.kind != TraceKind::kTask) out.field("microbatch", r.microbatch);
      break;
    case TraceKind::kUploadInput:
    case TraceKind::kDownloadOutput: {
      static constexpr std::array<const char*, kBlockKinds> kNames = {
          "activation", "gradient", "recompute data", "buffers", "loss arguments", "input list", "argument list"};
      out.field("bytes", r.numbers[0]).field("what", kNames[std::min(r.detail, kBlockKinds - 1)]);
      out.field("index", r.first_layer).field("microbatch", r.microbatch);
      break;
    }
    case TraceKind::kUploadWeights:
    case TraceKind::kDownloadGradient:
      out.field("bytes", r.numbers[0])
          .field("what", r.kind == TraceKind::kUploadWeights ? "weights" : "weight gradient");
      add_layers(out, r);
      out.field("microbatch", -1);
      break;
    case TraceKind::kWait: break;
    case TraceKind::kAcceptRound:
      add_round(out, r);
      out.field("slots", r.numbers[2]);
      break;
    case TraceKind::kCopyInputs:
      add_round(out, r);
      out.field("bytes", r.numbers[2]);
      break;
    case TraceKind::kCommit: out.field("worker", r.numbers[0]); break;
    case TraceKind::kUpdate:
    case TraceKind::kAddGradient:
    case TraceKind::kNorm:
      out.field("step", r.numbers[0]).field("version", r.numbers[1]);
      add_layers(out, r);
      break;
    case TraceKind::kNone: break;
  }
}

}  // namespace rp

// hoststore/step_journal.h
// Keeps what another coordinator needs to go on in this one's place: for each pipeline, records of its last steps, and
// which weight groups have which version. Byte format: docs/formats/step_journal.md. Design: docs/design/restart.md.
//
// It is a segment of the host store that outlives the coordinator, as weights, gradients and optimizer state do.
// Contract: only the coordinator writes it. A record counts once it is complete, so a coordinator that dies while it
// writes one leaves the one before.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hoststore/arena_view.h"
#include "hoststore/ids.h"
#include "hoststore/sequence_word.h"

namespace rp {

// Identifies the program that wrote a journal. No other program can continue with it.
struct ProgramIdentity {
  using ShmFormat = void;
  std::uint64_t build_id = 0;
  std::uint64_t fingerprint = 0;  // of layers and losses
  std::uint64_t catalogue = 0;    // checksum of the catalogue
  bool operator==(const ProgramIdentity&) const = default;
};

class StepJournal {
 public:
  // Makes an empty journal. `scratch_bytes`: by pipeline, see scratch(). Throws rp::Error (kNoResource).
  [[nodiscard]] static std::unique_ptr<StepJournal> create(Backing backing, const ProgramIdentity& identity,
                                                           std::uint64_t num_groups,
                                                           const std::vector<std::uint64_t>& scratch_bytes);
  // Takes over the journal of a coordinator that has died. Throws rp::Error (kUserError) if it is no journal of this
  // version.
  [[nodiscard]] static std::unique_ptr<StepJournal> attach(UniqueFd fd);
  // Throws rp::Error (kUserError) if it is the journal of another program.
  void check_identity(const ProgramIdentity& identity) const;

  [[nodiscard]] int fd() const { return file_.segment().fd(); }
  [[nodiscard]] std::uint64_t bytes() const { return file_.segment().bytes(); }
  [[nodiscard]] int num_pipelines() const { return static_cast<int>(header().num_pipelines); }

  // Writes the record of the step that makes `version`; the one before it is kept, too. REQUIRES: versions grow by one,
  // except after invalidate(). Throws rp::Error (kNoResource).
  void write(int pipeline, Version version, std::span<const std::byte> record);
  // Until the next write() there is no record: the weights are written from outside, or only this process could finish
  // a step.
  void invalidate(int pipeline);
  // Returns the version of the newest record, or nothing if there is none.
  [[nodiscard]] std::optional<Version> newest(int pipeline) const;
  // Returns the record of a version; empty if it is not there or damaged.
  [[nodiscard]] std::span<const std::byte> record(int pipeline, Version version) const;

  // The version of a group that is complete, in all of its parts.
  [[nodiscard]] NumberWord<Version>& applied(GroupId group) const;
  // Memory for the code that updates a pipeline's groups (optimizer/update_journal.h); zeros at first, aligned to 64.
  [[nodiscard]] std::span<std::byte> scratch(int pipeline) const;

 private:
  struct Header {
    using ShmFormat = void;
    std::uint64_t magic;
    std::uint32_t format;
    std::uint32_t num_pipelines;
    ProgramIdentity identity;
    std::uint64_t num_groups;
    std::uint64_t used_bytes;  // the rest may be given to a record
  };
  struct Extent {
    using ShmFormat = void;
    std::uint64_t version;
    std::uint64_t offset;
    std::uint64_t capacity;
    std::uint64_t bytes;
    std::uint64_t checksum;
  };
  struct PipelineSteps {
    using ShmFormat = void;
    SequenceWord newest;  // the version of the newest record, plus 1; 0: none
    Extent records[2];    // of version v at v % 2
    std::uint64_t scratch_offset;
    std::uint64_t scratch_bytes;
  };
  static_assert(ShmSafe<Header> && ShmSafe<Extent> && ShmSafe<PipelineSteps>);

  explicit StepJournal(Segment segment);
  [[nodiscard]] Header& header() const { return *reinterpret_cast<Header*>(base_); }
  [[nodiscard]] PipelineSteps& steps(int pipeline) const;
  // Returns the offset of `bytes` new bytes.
  [[nodiscard]] std::uint64_t allocate(std::uint64_t bytes);

  mutable ArenaView file_;
  std::byte* base_ = nullptr;
};

}  // namespace rp

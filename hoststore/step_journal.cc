#include "hoststore/step_journal.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/order_stores.h"
#include "common/system/crash_point.h"
#include "hoststore/boundary.h"
#include "hoststore/data_checksum.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

constexpr std::uint64_t kMagic = 0x3153504554535052;  // "RPSTEPS1"
constexpr std::uint32_t kFormat = 1;
constexpr std::uint64_t kLimitBytes = std::uint64_t{1} << 36;  // address space only
constexpr std::uint64_t kLine = 64;

}  // namespace

StepJournal::StepJournal(Segment segment) : file_(std::move(segment), kLimitBytes) {}

std::unique_ptr<StepJournal> StepJournal::create(Backing backing, const ProgramIdentity& identity,
                                                 std::uint64_t num_groups,
                                                 const std::vector<std::uint64_t>& scratch_bytes) {
  std::unique_ptr<StepJournal> journal(new StepJournal(Segment::create(backing, "the journal of steps")));
  const std::uint64_t applied = align_up(sizeof(Header), kLine);
  const std::uint64_t pipelines = applied + align_up(num_groups * sizeof(NumberWord<Version>), kLine);
  std::uint64_t end = pipelines + align_up(scratch_bytes.size() * sizeof(PipelineSteps), kLine);
  const std::uint64_t scratch = end;
  for (const std::uint64_t bytes : scratch_bytes) end += align_up(bytes, kLine);
  journal->file_.grow(end);
  journal->base_ = journal->file_.data(0, end);
  journal->header() = {.magic = kMagic,
                       .format = kFormat,
                       .num_pipelines = static_cast<std::uint32_t>(scratch_bytes.size()),
                       .identity = identity,
                       .num_groups = num_groups,
                       .used_bytes = end};
  std::uint64_t offset = scratch;
  for (std::size_t i = 0; i < scratch_bytes.size(); ++i) {
    PipelineSteps& steps = journal->steps(static_cast<int>(i));
    steps.scratch_offset = offset;
    steps.scratch_bytes = scratch_bytes[i];
    offset += align_up(scratch_bytes[i], kLine);
  }
  return journal;
}

std::unique_ptr<StepJournal> StepJournal::attach(UniqueFd fd) {
  const Error strange(ExitCode::kUserError, "the memory that was handed over is no journal of steps of this version");
  Segment segment = Segment::attach(std::move(fd), "the journal of steps");
  const std::uint64_t length = segment.bytes();
  if (length < sizeof(Header)) throw strange;
  std::unique_ptr<StepJournal> journal(new StepJournal(std::move(segment)));
  journal->base_ = journal->file_.data(0, length);
  const Header& header = journal->header();
  if (header.magic != kMagic || header.format != kFormat || header.used_bytes > length) throw strange;
  return journal;
}

void StepJournal::check_identity(const ProgramIdentity& identity) const {
  if (header().identity == identity) return;
  throw Error(
      ExitCode::kUserError,
      "the program or its model has changed since the run began, so it cannot go on where it was; resume from a "
      "checkpoint");
}

NumberWord<Version>& StepJournal::applied(GroupId group) const {
  return reinterpret_cast<NumberWord<Version>*>(base_ + align_up(sizeof(Header), kLine))[group.value()];
}

StepJournal::PipelineSteps& StepJournal::steps(int pipeline) const {
  const std::uint64_t offset =
      align_up(sizeof(Header), kLine) + align_up(header().num_groups * sizeof(NumberWord<Version>), kLine);
  return reinterpret_cast<PipelineSteps*>(base_ + offset)[pipeline];
}

std::span<std::byte> StepJournal::scratch(int pipeline) const {
  const PipelineSteps& own = steps(pipeline);
  return {base_ + own.scratch_offset, own.scratch_bytes};
}

std::uint64_t StepJournal::allocate(std::uint64_t bytes) {
  const std::uint64_t offset = align_up(header().used_bytes, kLine);
  file_.grow(offset + bytes);
  (void)file_.data(offset, bytes);  // maps it
  header().used_bytes = offset + bytes;
  return offset;
}

void StepJournal::write(int pipeline, Version version, std::span<const std::byte> record) {
  PipelineSteps& own = steps(pipeline);
  Extent& extent = own.records[version.value() % 2];
  extent.checksum = 0;
  if (extent.capacity < record.size()) {
    const std::uint64_t capacity = std::max<std::uint64_t>(2 * record.size(), 4096);
    extent.capacity = 0;  // in case this process dies; the old place is not used again
    order_stores();
    extent.offset = allocate(capacity);
    order_stores();
    extent.capacity = capacity;
  }
  RP_CRASH_POINT("coordinator.journal.has_room");
  std::memcpy(base_ + extent.offset, record.data(), record.size());
  RP_CRASH_POINT("coordinator.journal.copies");
  extent.version = version.value();
  extent.bytes = record.size();
  extent.checksum = DataChecksum::of(record);
  // SYNC: release; pairs with the acquire in newest(), of a process that attaches after the death of this one.
  RP_CRASH_POINT("coordinator.journal.is_complete");
  own.newest.publish_quietly(version.value() + 1);
}

void StepJournal::invalidate(int pipeline) { steps(pipeline).newest.publish_quietly(0); }

std::optional<Version> StepJournal::newest(int pipeline) const {
  const std::uint64_t newest = steps(pipeline).newest.observe();
  return newest == 0 ? std::nullopt : std::optional(Version(newest - 1));
}

std::span<const std::byte> StepJournal::record(int pipeline, Version version) const {
  const Extent& extent = steps(pipeline).records[version.value() % 2];
  if (extent.checksum == 0 || extent.version != version.value()) return {};
  if (extent.offset > header().used_bytes || extent.bytes > header().used_bytes - extent.offset) return {};
  const std::span<const std::byte> bytes(base_ + extent.offset, extent.bytes);
  return DataChecksum::of(bytes) == extent.checksum ? bytes : std::span<const std::byte>();
}

}  // namespace rp

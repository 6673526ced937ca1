#include "launcher/process/channel.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "roundpipe/error.h"

namespace rp {
namespace {

TEST(Channel, AMessageArrivesWithItsBlobAndItsDescriptors) {
  auto [a, b] = Channel::create_pair();
  Message sent{.kind = MessageKind::kAttach, .worker = 3, .status = -7, .blob = {}, .descriptors = {}};
  sent.blob.assign(kMaxBlobBytes, std::byte{42});
  for (std::size_t i = 0; i < kMaxDescriptors; ++i) sent.descriptors.emplace_back(dup(0));
  UniqueFd file(memfd_create("file", MFD_CLOEXEC));
  ASSERT_EQ(write(file.get(), "text", 4), 4);
  sent.descriptors[5] = std::move(file);
  ASSERT_TRUE(a.send(sent));
  const std::optional<Message> got = b.receive(Deadline::after_seconds(1));
  ASSERT_TRUE(got.has_value());
  EXPECT_EQ(got->kind, MessageKind::kAttach);
  EXPECT_EQ(got->worker, 3);
  EXPECT_EQ(got->status, -7);
  EXPECT_EQ(got->blob, sent.blob);
  ASSERT_EQ(got->descriptors.size(), kMaxDescriptors);
  char text[4];
  EXPECT_EQ(pread(got->descriptors[5].get(), text, 4, 0), 4);
}

TEST(Channel, APassedDeadlineIsNotALostPeer) {
  auto [a, b] = Channel::create_pair();
  EXPECT_FALSE(b.receive(Deadline::after_ns(1)).has_value());
  EXPECT_FALSE(b.peer_gone());
}

TEST(Channel, WhatWasSentBeforeTheEndIsReceivedBeforeIt) {
  auto [a, b] = Channel::create_pair();
  {
    const Channel gone = std::move(a);
    Channel& sender = const_cast<Channel&>(gone);
    ASSERT_TRUE(sender.send(Message{}));
  }
  EXPECT_TRUE(b.receive(Deadline::after_seconds(1)).has_value());
  EXPECT_FALSE(b.receive(Deadline::after_seconds(1)).has_value());
  EXPECT_TRUE(b.peer_gone());
  EXPECT_FALSE(b.send(Message{}));
}

TEST(Channel, SendingToAPeerThatDoesNotReadNeverBlocks) {
  auto [a, b] = Channel::create_pair();
  Message message;
  message.blob.resize(kMaxBlobBytes);
  int num_sent = 0;
  while (a.send(message)) ++num_sent;
  EXPECT_GT(num_sent, 10);
  EXPECT_FALSE(a.peer_gone());
}

TEST(Channel, APacketOfAnotherFormatIsRefused) {
  auto [a, b] = Channel::create_pair();
  ASSERT_EQ(::send(a.fd(), "nonsense", 8, 0), 8);
  EXPECT_THROW((void)b.receive(Deadline::after_seconds(1)), Error);
}

}  // namespace
}  // namespace rp

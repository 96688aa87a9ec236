// SPDX-License-Identifier: Apache-2.0
// Many entries in one file, to carry them to another machine. The same entries give the same bytes,
// whenever, wherever and in whatever order they were stored: nothing else is in it. The grammar
// below is the format; docs/cache-format.md repeats it.
//
//   pack        = magic version *member end checksum
//   magic       = 89 52 4c 50 0d 0a 1a 0a   ("\x89RLP\r\n\x1a\n")
//   version     = u32                       pack_version below
//   member      = mark name_size entry_size name entry
//   mark        = u8                        1; 2 where a manifest lists the entry's kernel
//   name_size   = u32                       at most 255
//   entry_size  = u64                       at most that of the largest entry
//   name        = name_size bytes           of the entry's file, as entry_name.hpp makes it
//   entry       = entry_size bytes          the whole file, see entry.hpp
//   end         = u8 num_members            0, then u64
//   checksum    = 16 bytes                  xxHash-128, canonical order, of all bytes before it
//
// Integers are unsigned and little-endian. Members stand in ascending order of their names' bytes,
// each name once. Nothing follows the checksum, which shows damage, not forgery.
#pragma once

#include "cache/entry.hpp"
#include "cache/files/bytes.hpp"
#include "cache/files/file_system.hpp"
#include "cache/files/sha256.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace rlk::cache {

inline constexpr std::uint32_t pack_version = 1;

// Where a pack's bytes go, in order: 0 or an errno.
using WriteBytes = std::function<int(std::string_view bytes)>;

class PackWriter {
 public:
  // Each call gives 0 or the errno of the write that failed; then the pack is of no use.
  explicit PackWriter(WriteBytes write) : write_(std::move(write)) {}

  int start();
  // In ascending order of names.
  int add(std::string_view name, std::string_view entry_bytes, bool is_listed);
  int finish();

  std::uint64_t num_entries() const { return num_entries_; }
  std::uint64_t num_bytes() const { return num_bytes_; }
  std::string sha256() const { return hex(sha256_.digest()); }  // of all bytes so far

 private:
  int append(std::string_view bytes);

  WriteBytes write_;
  Checksum checksum_;
  Sha256 sha256_;
  std::uint64_t num_entries_ = 0, num_bytes_ = 0;
};

struct PackMember {
  std::string name;        // of the entry's file: fits the entry's key, holds no path
  bool is_listed = false;  // a manifest lists its kernel
  Entry entry;
  Sha256::Digest sha256_so_far{};  // of the pack up to the end of this member
};

// The next bytes of a pack, fewer than asked for only at its end.
using ReadBytes = std::function<Outcome<std::size_t>(void* to, std::size_t num_bytes)>;

// What is done with a member: "" to go on, else why the pack is refused.
using TakeMember = std::function<std::string(const PackMember& member)>;

struct PackRead {
  std::string problem = {};  // empty exactly when the pack is sound to its end
  std::uint64_t num_entries = 0;
  std::string sha256 = {};  // of the whole, if it is sound
};

// Reads a pack of `num_bytes` bytes. Safe for any bytes; holds one entry at a time and allocates
// nothing before its sizes agree. Members are taken before the end is known to be sound.
PackRead read_pack(const ReadBytes& read, std::uint64_t num_bytes, const TakeMember& take);

}  // namespace rlk::cache

// SPDX-License-Identifier: Apache-2.0
// Writes and reads packs.
#include "cache/pack.hpp"

#include "cache/entry_name.hpp"
#include "cache/key.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

namespace rlk::cache {
namespace {

constexpr std::string_view k_pack_magic{"\x89RLP\r\n\x1a\n", 8};
constexpr std::uint32_t k_most_pack_name_bytes = 255;
constexpr std::uint64_t k_most_entry_bytes =
    EntrySizes{max_key_bytes, max_metadata_bytes, max_payload_bytes}.file_bytes();

enum Mark : std::uint8_t { end_mark = 0, plain_mark = 1, listed_mark = 2 };

// Why the pack is refused, on the way out of the reader.
struct Refused {
  std::string problem;
};

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw Refused{fmt::format(format, std::forward<Args>(args)...)};
}

// Names come from strangers: only what a message can show is shown.
std::string shown(std::string_view name) {
  std::string text;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte > 0x7e ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return text;
}

class Reader {
 public:
  Reader(const ReadBytes& read, std::uint64_t num_bytes) : read_(read), num_left_(num_bytes) {}

  PackRead run(const TakeMember& take) {
    check_head();
    std::uint64_t num_entries = 0;
    for (PackMember member; read_member(member, num_entries); ++num_entries) {
      if (const std::string problem = take(member); !problem.empty()) {
        refuse("entry {} ({}): {}", num_entries, member.name, problem);
      }
    }
    check_end(num_entries);
    return {{}, num_entries, hex(sha256_.digest())};
  }

 private:
  // Appends the next bytes; whoever calls has checked that their number is sane.
  void read_more(std::string& bytes, std::uint64_t num_more) {
    if (num_more > num_left_) {
      refuse("torn: expected {} bytes more at least, got {}", num_more, num_left_);
    }
    const std::size_t before = bytes.size();
    bytes.resize(before + num_more);
    const auto num_read = read_(bytes.data() + before, num_more);
    if (!num_read) refuse("read: {}", error_text(num_read.error));
    if (num_read.value != num_more) {
      refuse("torn: it has become shorter while it was read");
    }
    num_left_ -= num_more;
    const auto added = std::string_view(bytes).substr(before);
    checksum_.update(added);
    sha256_.update(added);
  }

  template <class Unsigned>
  Unsigned read_number() {
    std::string bytes;
    read_more(bytes, sizeof(Unsigned));
    return load_little_endian<Unsigned>(bytes.data());
  }

  void check_head() {
    std::string magic;
    read_more(magic, std::min<std::uint64_t>(k_pack_magic.size(), num_left_));
    if (magic.empty() || !k_pack_magic.starts_with(magic))
      refuse("not a pack of rlk (wrong magic)");
    if (magic.size() < k_pack_magic.size())
      refuse("torn: expected a head, got {} bytes", magic.size());
    const auto version = read_number<std::uint32_t>();
    if (version > pack_version) {
      refuse("format version {} is newer than {}, the newest that this rlk reads", version,
             pack_version);
    }
    if (version != pack_version) {
      refuse("expected format version {}, got {}", pack_version, version);
    }
  }

  // False at the end's mark.
  bool read_member(PackMember& member, std::uint64_t index) {
    const auto mark = read_number<std::uint8_t>();
    if (mark == end_mark) return false;
    if (mark != plain_mark && mark != listed_mark) {
      refuse("entry {}: mark: expected 0, 1 or 2, got {}", index, mark);
    }
    const auto name_size = read_number<std::uint32_t>();
    const auto entry_size = read_number<std::uint64_t>();
    if (name_size > k_most_pack_name_bytes) {
      refuse("entry {}: name: expected at most {} bytes, got {}", index, k_most_pack_name_bytes,
             name_size);
    }
    std::string name;
    read_more(name, name_size);
    const auto parsed = checked_name(name, member.name, index);
    if (entry_size > k_most_entry_bytes) {
      refuse("entry {} ({}): size: expected at most {} bytes, got {}", index, name,
             k_most_entry_bytes, entry_size);
    }
    member.entry = read_entry(name, parsed.digest, entry_size, index);
    member.name = std::move(name);
    member.is_listed = mark == listed_mark;
    member.sha256_so_far = sha256_.digest();
    return true;
  }

  static EntryFileName checked_name(const std::string& name, const std::string& before,
                                    std::uint64_t index) {
    const auto parsed = parse_entry_file_name(name);
    // Made anew from its parts it is the same: so it holds no path and is the one that a put uses.
    if (!parsed || entry_file_name(parsed->digest, parsed->compiler) != name) {
      refuse("entry {}: name: expected an entry's, without a path, got \"{}\"", index, shown(name));
    }
    if (name <= before) {
      refuse("entry {}: name: expected one after \"{}\", got \"{}\"", index, before, name);
    }
    return *parsed;
  }

  Entry read_entry(const std::string& name, const std::string& digest, std::uint64_t num_bytes,
                   std::uint64_t index) {
    std::string bytes;
    read_more(bytes, std::min<std::uint64_t>(entry_head_bytes, num_bytes));
    const auto sizes = decode_sizes(std::as_bytes(std::span(bytes)), num_bytes);
    if (!sizes.value) refuse("entry {} ({}): {}", index, name, sizes.problem);
    read_more(bytes, num_bytes - bytes.size());
    auto decoded = decode_entry(std::as_bytes(std::span(bytes)));
    if (!decoded.value) refuse("entry {} ({}): {}", index, name, decoded.problem);
    if (Key{decoded.value->key}.digest() != digest) {
      refuse("entry {} ({}): holds another key than its name says", index, name);
    }
    return std::move(*decoded.value);
  }

  void check_end(std::uint64_t num_entries) {
    const auto num_members = read_number<std::uint64_t>();
    if (num_members != num_entries) {
      refuse("expected {} entries, got {}", num_members, num_entries);
    }
    const XXH128_canonical_t sum = checksum_.sum();
    std::string stored;
    read_more(stored, sizeof(sum.digest));
    if (std::memcmp(stored.data(), sum.digest, sizeof(sum.digest)) != 0) refuse("wrong checksum");
    if (num_left_ != 0) refuse("expected nothing after the checksum, got {} bytes", num_left_);
  }

  const ReadBytes& read_;
  std::uint64_t num_left_;
  Checksum checksum_;
  Sha256 sha256_;
};

}  // namespace

int PackWriter::append(std::string_view bytes) {
  checksum_.update(bytes);
  sha256_.update(bytes);
  num_bytes_ += bytes.size();
  return write_(bytes);
}

int PackWriter::start() {
  std::string bytes(k_pack_magic);
  append_little_endian(bytes, pack_version);
  return append(bytes);
}

int PackWriter::add(std::string_view name, std::string_view entry_bytes, bool is_listed) {
  std::string bytes;
  append_little_endian(bytes, static_cast<std::uint8_t>(is_listed ? listed_mark : plain_mark));
  append_little_endian(bytes, static_cast<std::uint32_t>(name.size()));
  append_little_endian(bytes, std::uint64_t{entry_bytes.size()});
  bytes.append(name);
  ++num_entries_;
  const int error = append(bytes);
  return error != 0 ? error : append(entry_bytes);
}

int PackWriter::finish() {
  std::string bytes;
  append_little_endian(bytes, static_cast<std::uint8_t>(end_mark));
  append_little_endian(bytes, num_entries_);
  if (const int error = append(bytes); error != 0) return error;
  const XXH128_canonical_t sum = checksum_.sum();
  return append({reinterpret_cast<const char*>(sum.digest), sizeof(sum.digest)});
}

PackRead read_pack(const ReadBytes& read, std::uint64_t num_bytes, const TakeMember& take) {
  try {
    return Reader(read, num_bytes).run(take);
  } catch (const Refused& refused) {
    return {refused.problem};
  }
}

}  // namespace rlk::cache

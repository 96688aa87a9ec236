// SPDX-License-Identifier: Apache-2.0
// libFuzzer target for packs, which come from strangers. Not in CI; build and run:
// ninja fuzz && tests/fuzz_pack -max_total_time=600
#include "cache/entry_name.hpp"
#include "cache/key.hpp"
#include "cache/pack.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

using namespace rlk::cache;

namespace {

void expect(bool is_true) {
  if (!is_true) std::abort();
}

// Reads the bytes, and, if they are a pack, writes what was read: the same bytes again.
PackRead read_and_write(std::string_view bytes) {
  std::string again;
  PackWriter writer([&](std::string_view more) {
    again.append(more);
    return 0;
  });
  writer.start();
  std::size_t at = 0;
  const PackRead read = read_pack(
      [&](void* to, std::size_t num_asked) -> Outcome<std::size_t> {
        expect(num_asked <= bytes.size() - at);  // never more than there is
        std::memcpy(to, bytes.data() + at, num_asked);
        at += num_asked;
        return {num_asked};
      },
      bytes.size(),
      [&](const PackMember& member) {
        expect(member.name.find('/') == std::string::npos && parse_entry_file_name(member.name));
        expect(member.name.starts_with(Key{member.entry.key}.digest()));
        writer.add(member.name, encode_entry(member.entry), member.is_listed);
        return "";
      });
  if (!read.problem.empty()) return read;
  writer.finish();
  expect(at == bytes.size() && again == bytes && writer.sha256() == read.sha256);
  return read;
}

// Chance finds no checksum: the bytes under a sound head and before a sound end.
void read_sealed(std::string_view body) {
  std::string bytes("\x89RLP\r\n\x1a\n", 8);
  append_little_endian(bytes, pack_version);
  bytes.append(body);
  const auto sum = checksum(bytes.data(), bytes.size());
  bytes.append(reinterpret_cast<const char*>(sum.digest), sizeof(sum.digest));
  read_and_write(bytes);
}

// Entries cut from the bytes: names and entries that fit, then one byte of them spoilt.
void read_made(std::string_view data) {
  if (data.size() < 4) return;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(data[i]); };
  const std::size_t num_entries = byte(0) % 4;
  const std::size_t spoilt_at = byte(1) | byte(2) << 8;
  const char flip = data[3];
  data.remove_prefix(4);
  std::vector<std::pair<std::string, std::string>> items;
  for (std::size_t i = 0; i < num_entries; ++i) {
    const std::string_view part = data.substr(0, data.size() / (num_entries - i));
    data.remove_prefix(part.size());
    const Entry entry{std::string(part), "{}", {}};
    const std::string compiler(part.substr(0, part.empty() ? 0 : 1 + part.size() % 80));
    items.emplace_back(entry_file_name(Key{entry.key}.digest(), compiler.empty() ? "c" : compiler),
                       encode_entry(entry));
  }
  std::ranges::sort(items);
  items.erase(std::ranges::unique(items).begin(), items.end());
  std::string bytes;
  PackWriter writer([&](std::string_view more) {
    bytes.append(more);
    return 0;
  });
  writer.start();
  for (const auto& [name, entry] : items) writer.add(name, entry, name.back() < name.front());
  writer.finish();
  expect(read_and_write(bytes).problem.empty());
  if (flip == 0) return;
  bytes[spoilt_at % bytes.size()] ^= flip;
  expect(!read_and_write(bytes).problem.empty());
  // Sealed anew the flip may be of no consequence to the format; it must be safe.
  if (bytes.size() > 28) read_sealed(std::string_view(bytes).substr(12, bytes.size() - 28));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  read_and_write(bytes);
  read_sealed(bytes);
  read_made(bytes);
  return 0;
}

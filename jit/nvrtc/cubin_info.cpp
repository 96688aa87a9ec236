// SPDX-License-Identifier: Apache-2.0
// A cubin is an ELF file; `.nv.info` holds records of (format, attribute, size, data).
#include "jit/nvrtc/cubin_info.hpp"

#include <elf.h>

#include <cstring>
#include <map>
#include <string_view>

namespace rlk::jit {
namespace {

constexpr Elf64_Half k_machine_cuda = 190;
constexpr std::uint8_t k_sized_record = 4;  // the others carry at most the two bytes of the size
constexpr std::uint8_t k_frame_size = 0x11, k_register_count = 0x2f;
// From sm_90 on the system keeps the first KiB of a block's shared memory, and the cubin counts it.
constexpr std::int64_t k_reserved_bytes = 1024;

// Any read outside of the bytes makes the whole answer "nothing".
struct Damaged {};

using Bytes = std::span<const std::byte>;

Bytes part(Bytes bytes, std::uint64_t offset, std::uint64_t size) {
  if (offset > bytes.size() || size > bytes.size() - offset) throw Damaged{};
  return bytes.subspan(offset, size);
}

template <class T>
T read(Bytes bytes, std::uint64_t offset) {
  T value;
  std::memcpy(&value, part(bytes, offset, sizeof(T)).data(), sizeof(T));
  return value;
}

std::string_view text(Bytes strings, std::uint64_t offset) {
  if (offset >= strings.size()) throw Damaged{};
  const auto* begin = reinterpret_cast<const char*>(strings.data()) + offset;
  const std::size_t room = strings.size() - offset;
  const std::size_t length = strnlen(begin, room);
  if (length == room) throw Damaged{};
  return {begin, length};
}

class Cubin {
 public:
  explicit Cubin(Bytes bytes) : bytes_(bytes) {
    const auto header = read<Elf64_Ehdr>(bytes, 0);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
        header.e_machine != k_machine_cuda || header.e_shentsize != sizeof(Elf64_Shdr)) {
      throw Damaged{};
    }
    const auto table =
        part(bytes, header.e_shoff, std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr));
    sections_.resize(header.e_shnum);
    if (!table.empty()) std::memcpy(sections_.data(), table.data(), table.size());
    names_ = data(section(header.e_shstrndx));
  }

  const std::vector<Elf64_Shdr>& sections() const { return sections_; }
  std::string_view name(const Elf64_Shdr& section) const { return text(names_, section.sh_name); }
  Bytes data(const Elf64_Shdr& section) const {
    return part(bytes_, section.sh_offset, section.sh_size);
  }

  // Name of a symbol of the table that `section` is linked to.
  std::string_view symbol(const Elf64_Shdr& linked, std::uint32_t index) const {
    const Elf64_Shdr& table = section(linked.sh_link);
    const auto entry = read<Elf64_Sym>(data(table), std::uint64_t{index} * sizeof(Elf64_Sym));
    return text(data(section(table.sh_link)), entry.st_name);
  }

 private:
  const Elf64_Shdr& section(std::uint64_t index) const {
    if (index >= sections_.size()) throw Damaged{};
    return sections_[index];
  }

  Bytes bytes_;
  std::vector<Elf64_Shdr> sections_;
  Bytes names_;
};

// "rlk_a" of ".text.rlk_a"; nothing of ".text".
std::optional<std::string_view> after(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix) || name.size() == prefix.size()) return std::nullopt;
  return name.substr(prefix.size());
}

struct Usage {
  std::map<std::string, int, std::less<>> registers;
  std::map<std::string, std::int64_t, std::less<>> frames;
};

void read_records(const Cubin& cubin, const Elf64_Shdr& section, Usage& usage) {
  const Bytes records = cubin.data(section);
  for (std::uint64_t at = 0; at < records.size();) {
    const auto format = read<std::uint8_t>(records, at);
    const auto attribute = read<std::uint8_t>(records, at + 1);
    const auto size = read<std::uint16_t>(records, at + 2);
    at += 4;
    if (format != k_sized_record) continue;
    if ((attribute == k_register_count || attribute == k_frame_size) && size >= 8) {
      const std::string kernel(cubin.symbol(section, read<std::uint32_t>(records, at)));
      const auto value = read<std::uint32_t>(records, at + 4);
      if (attribute == k_register_count) {
        usage.registers[kernel] = static_cast<int>(value);
      } else {
        usage.frames[kernel] = value;
      }
    }
    at += size;
  }
}

template <class Map, class Value>
void take(const Map& map, const std::string& name, Value& value) {
  if (const auto found = map.find(name); found != map.end()) value = found->second;
}

std::vector<CubinKernel> read_kernels(const Cubin& cubin) {
  Usage usage;
  std::map<std::string, std::int64_t, std::less<>> shared;
  std::vector<CubinKernel> kernels;
  bool reserves = false;
  for (const Elf64_Shdr& section : cubin.sections()) {
    const auto name = cubin.name(section);
    if (name == ".nv.info") {
      read_records(cubin, section, usage);
    } else if (const auto kernel = after(name, ".text.")) {
      cubin.data(section);  // the code is there
      kernels.push_back(
          {std::string(*kernel), -1, 0, -1, static_cast<std::int64_t>(section.sh_size)});
    } else if (name == ".nv.shared.reserved.0") {
      reserves = true;
    } else if (const auto owner = after(name, ".nv.shared.")) {
      shared[std::string(*owner)] = static_cast<std::int64_t>(section.sh_size);
    }
  }
  for (CubinKernel& kernel : kernels) {
    take(usage.registers, kernel.name, kernel.registers);
    take(usage.frames, kernel.name, kernel.local_bytes);
    take(shared, kernel.name, kernel.shared_bytes);
    if (reserves && kernel.shared_bytes >= k_reserved_bytes)
      kernel.shared_bytes -= k_reserved_bytes;
  }
  return kernels;
}

}  // namespace

std::optional<std::vector<CubinKernel>> read_cubin(std::span<const std::byte> bytes) {
  try {
    return read_kernels(Cubin(bytes));
  } catch (const Damaged&) {
    return std::nullopt;
  }
}

}  // namespace rlk::jit

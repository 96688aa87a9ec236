// SPDX-License-Identifier: Apache-2.0
// Program headers point to the notes, one of which is the build-id; some hundred bytes are read.
#include "jit/nvrtc/build_id.hpp"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace rlk::jit {
namespace {

constexpr std::uint64_t k_most_note_bytes = 64 << 10;  // a damaged size must not cost memory

class File {
 public:
  explicit File(const char* path) : descriptor_(open(path, O_RDONLY | O_CLOEXEC)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  // All of the bytes or false.
  bool read(std::uint64_t offset, void* into, std::size_t bytes) const {
    return descriptor_ >= 0 && pread(descriptor_, into, bytes, static_cast<off_t>(offset)) ==
                                   static_cast<ssize_t>(bytes);
  }

 private:
  int descriptor_;
};

std::uint64_t round_up_4(std::uint64_t value) { return (value + 3) / 4 * 4; }

// The build-id among the notes of one segment.
std::optional<std::string> find_in(std::span<const unsigned char> notes) {
  while (notes.size() >= sizeof(Elf64_Nhdr)) {
    Elf64_Nhdr note;
    std::memcpy(&note, notes.data(), sizeof(note));
    notes = notes.subspan(sizeof(note));
    const std::uint64_t name_bytes = round_up_4(note.n_namesz);
    const std::uint64_t bytes = name_bytes + round_up_4(note.n_descsz);
    if (bytes > notes.size()) return std::nullopt;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && note.n_descsz > 0 &&
        std::memcmp(notes.data(), "GNU", 4) == 0) {
      return fmt::format("{:02x}", fmt::join(notes.subspan(name_bytes, note.n_descsz), ""));
    }
    notes = notes.subspan(bytes);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> read_build_id(const std::filesystem::path& library) {
  const File file(library.c_str());
  Elf64_Ehdr header;
  if (!file.read(0, &header, sizeof(header)) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
      header.e_machine != EM_X86_64 || header.e_phentsize != sizeof(Elf64_Phdr)) {
    return std::nullopt;
  }
  for (std::uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!file.read(header.e_phoff + i * sizeof(segment), &segment, sizeof(segment))) break;
    if (segment.p_type != PT_NOTE || segment.p_filesz > k_most_note_bytes) continue;
    std::vector<unsigned char> notes(segment.p_filesz);
    if (!file.read(segment.p_offset, notes.data(), notes.size())) continue;
    if (auto id = find_in(notes)) return id;
  }
  return std::nullopt;
}

}  // namespace rlk::jit

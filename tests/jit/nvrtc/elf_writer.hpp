// SPDX-License-Identifier: Apache-2.0
// Small ELF files for tests: libraries with a build-id, cubins with `.nv.info`.
#pragma once

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace rlk::test {

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

inline Elf64_Ehdr elf_header(Elf64_Half machine) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_machine = machine;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_shentsize = sizeof(Elf64_Shdr);
  return header;
}

// No library, but its file says that it is one with this build-id. Another note comes first.
inline std::string elf_with_build_id(std::string_view id, Elf64_Half machine = EM_X86_64) {
  const auto note = [](std::uint32_t type, std::string_view data) {
    std::string text = bytes_of(Elf64_Nhdr{4, static_cast<Elf64_Word>(data.size()), type}) +
                       std::string("GNU\0", 4) + std::string(data);
    text.resize((text.size() + 3) / 4 * 4);
    return text;
  };
  const std::string notes = note(1, "12345") + note(NT_GNU_BUILD_ID, id);
  auto header = elf_header(machine);
  header.e_phoff = sizeof(header);
  header.e_phnum = 2;
  Elf64_Phdr load{}, segment{};
  load.p_type = PT_LOAD;
  segment.p_type = PT_NOTE;
  segment.p_offset = sizeof(header) + 2 * sizeof(segment);
  segment.p_filesz = notes.size();
  return bytes_of(header) + bytes_of(load) + bytes_of(segment) + notes;
}

struct Section {
  std::string name;
  std::string data;
  Elf64_Word type = SHT_PROGBITS;
  Elf64_Word link = 0;
  std::uint64_t nobits_bytes = 0;
};

// Section 0 is the empty one and section 1 the names, as in every cubin.
inline std::string elf_with_sections(std::vector<Section> sections, Elf64_Half machine) {
  sections.insert(sections.begin(), {Section{"", "", SHT_NULL}, Section{".shstrtab", ""}});
  std::string names;
  std::vector<Elf64_Shdr> headers;
  for (const auto& section : sections) {
    Elf64_Shdr header{};
    header.sh_name = static_cast<Elf64_Word>(names.size());
    header.sh_type = section.type;
    header.sh_link = section.link;
    headers.push_back(header);
    names += section.name + '\0';
  }
  sections[1].data = names;
  std::string body;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    headers[i].sh_offset = sizeof(Elf64_Ehdr) + body.size();
    headers[i].sh_size = sections[i].data.size() + sections[i].nobits_bytes;
    body += sections[i].data;
  }
  auto header = elf_header(machine);
  header.e_shoff = sizeof(header) + body.size();
  header.e_shnum = static_cast<Elf64_Half>(sections.size());
  header.e_shstrndx = 1;
  std::string file = bytes_of(header) + body;
  for (const auto& section : headers) file += bytes_of(section);
  return file;
}

}  // namespace rlk::test

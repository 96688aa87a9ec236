// SPDX-License-Identifier: Apache-2.0
// Texts that a person or a file gave: shown so that each character is seen, and paths that nobody
// can have meant.
#pragma once

#include <string>
#include <string_view>

namespace rlk {

// What a terminal would obey (control codes, marks of direction), what nobody sees and what is no
// UTF-8, as \xNN.
std::string printable(std::string_view text);

// The same between quotes, for errors.
std::string in_quotes(std::string_view text);

// What a path was expected to be; empty if it may be meant as it is. It may not where no shell has
// expanded it, or where a file of another system left a line's end in it: the folder that would be
// made has a name that is hard to see and to remove. "./" before a path takes it as it is.
std::string_view expected_path(std::string_view text);

// Throws InvalidArgument, which names the source, where that is not empty.
void expect_path(std::string_view text, std::string_view source);

}  // namespace rlk

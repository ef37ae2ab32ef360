// HMAC-SHA256, for the proof of a shared secret on loopback. Small, because the core builds with a
// compiler alone; once per channel, so speed does not matter.
#pragma once

#include <string>
#include <string_view>

namespace antiphon {

std::string sha256(std::string_view data);
std::string hmac_sha256(std::string_view key, std::string_view data);

// Takes the same time wherever two proofs differ.
bool same_proof(std::string_view a, std::string_view b);

}  // namespace antiphon

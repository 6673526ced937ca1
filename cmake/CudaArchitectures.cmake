# Defines which GPUs CUDA code is compiled for by default: those of this machine, or all supported
# ones if it has none. `cmake -P` of this file prints the list.
set(RP_SUPPORTED_ARCHITECTURES "80-real;86-real;89-real;90-real;120")
set(RP_OLDEST_ARCHITECTURE 80)  # the first with bf16

function(rp_default_architectures result)
  set(found)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE lines ERROR_QUIET RESULT_VARIABLE code)
  if(code EQUAL 0)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" versions "${lines}")
    foreach(version IN LISTS versions)
      string(REPLACE "." "" number ${version})
      if(number GREATER_EQUAL RP_OLDEST_ARCHITECTURE)
        list(APPEND found ${number}-real)
      endif()
    endforeach()
    list(REMOVE_DUPLICATES found)
  endif()
  if(NOT found)
    set(found ${RP_SUPPORTED_ARCHITECTURES})
  endif()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

# Appends nvcc's options for a list of generations, in CMake's notation, to FLAGS. The sources are
# compiled once, for the oldest supported generation, and the assembler generates each generation's
# machine code from that. The result has the same bytes as a separate compilation for each
# generation.
function(rp_code_options flags architectures)
  set(codes)
  foreach(entry IN LISTS architectures)
    if(NOT entry MATCHES "^([0-9]+)(-real|-virtual)?$" OR CMAKE_MATCH_1 LESS RP_OLDEST_ARCHITECTURE)
      message(FATAL_ERROR "RP_CUDA_ARCHITECTURES has '${entry}'; its entries are generations of GPUs from ${RP_OLDEST_ARCHITECTURE} on, "
                          "as 89, 89-real (no code for newer ones) or 89-virtual (that alone); empty: those of this machine")
    endif()
    if(NOT CMAKE_MATCH_2 STREQUAL "-virtual")
      list(APPEND codes sm_${CMAKE_MATCH_1})
    endif()
    if(NOT CMAKE_MATCH_2 STREQUAL "-real")
      list(APPEND codes compute_${RP_OLDEST_ARCHITECTURE})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES codes)
  list(JOIN codes "," codes)
  set(${flags} "${${flags}} --generate-code=arch=compute_${RP_OLDEST_ARCHITECTURE},code=[${codes}]" PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  rp_default_architectures(list)
  message("${list}")
endif()

# Lists the rooms of this project, lowest first. Each is a folder with a library of its own, and
# declares the rooms that its sources include from. A room may only use rooms before it. LIBTORCH:
# the room sees LibTorch, and is omitted with RP_LIBTORCH=OFF; other rooms do not see LibTorch. All
# rooms may use include/roundpipe, which uses none of them. scripts/check_rooms.py compares this
# list with what the sources include, and draws docs/rooms.md from it.
#
# rp_room(folder [LIBTORCH] [USES folder ...])
function(rp_room room)
  cmake_parse_arguments(ARG "LIBTORCH" "" "USES" ${ARGN})
  get_property(rooms GLOBAL PROPERTY RP_ROOMS)
  get_property(left_out GLOBAL PROPERTY RP_ROOMS_LEFT_OUT)
  foreach(used IN LISTS ARG_USES)
    if(NOT used IN_LIST rooms AND NOT used IN_LIST left_out)
      message(FATAL_ERROR "${room} may not use ${used}, which is no room before it in cmake/Rooms.cmake")
    endif()
  endforeach()
  if(ARG_LIBTORCH AND NOT RP_LIBTORCH)
    set_property(GLOBAL APPEND PROPERTY RP_ROOMS_LEFT_OUT ${room})
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY RP_ROOMS ${room})
  set_property(GLOBAL PROPERTY RP_USES_${room} ${ARG_USES})
  set_property(GLOBAL PROPERTY RP_SEES_LIBTORCH_${room} ${ARG_LIBTORCH})
endfunction()

rp_room(common)
rp_room(common/system)
rp_room(common/command_line USES common)
rp_room(common/files USES common common/system)
rp_room(common/checked_files USES common common/system common/files)
rp_room(hoststore/memory USES common common/system)
rp_room(hoststore USES common common/system hoststore/memory)
rp_room(hoststore/records USES common common/system hoststore)
rp_room(nodes USES common common/system)
rp_room(nodes/mpi USES common nodes)
rp_room(scheduler USES common)
rp_room(scheduler/bound USES common scheduler)
rp_room(scheduler/simulation USES common scheduler)
rp_room(kernels USES common)
rp_room(kernels/cpu USES common kernels)
rp_room(kernels/cpu/quantised USES common kernels kernels/cpu)
rp_room(kernels/cuda USES common kernels)
rp_room(optimizer USES common kernels kernels/cpu)
rp_room(device USES common common/system hoststore/memory hoststore)
rp_room(cuda USES common common/system hoststore/memory hoststore device)
rp_room(nccl USES common common/system hoststore)
rp_room(model_files/config USES common common/checked_files kernels)
rp_room(model_files USES common common/checked_files scheduler kernels model_files/config)
rp_room(model_files/weights USES common common/files common/checked_files kernels model_files/config model_files)
rp_room(hoststore/task_file USES common common/checked_files hoststore model_files/weights)
rp_room(planner/prediction USES common common/checked_files scheduler scheduler/simulation model_files/config model_files)
rp_room(planner/timeline USES common common/files scheduler scheduler/simulation)
rp_room(planner USES common common/command_line common/files scheduler scheduler/bound scheduler/simulation model_files planner/prediction planner/timeline)
rp_room(worker/executor USES common common/system hoststore device)
rp_room(worker/copies USES common common/system hoststore device)
rp_room(worker/observers USES common hoststore hoststore/records device worker/executor)
rp_room(worker USES common common/system hoststore hoststore/records device nccl worker/executor worker/copies worker/observers)
rp_room(coordinator/rounds USES common common/system hoststore hoststore/records scheduler)
rp_room(coordinator/exchange USES common common/system hoststore nodes scheduler)
rp_room(coordinator/updates USES common common/system hoststore hoststore/records optimizer coordinator/rounds coordinator/exchange)
rp_room(coordinator/run_plans USES common hoststore scheduler)
rp_room(coordinator USES common common/system hoststore hoststore/records scheduler scheduler/simulation coordinator/rounds
        coordinator/exchange coordinator/updates coordinator/run_plans)
rp_room(launcher/process USES common common/system hoststore hoststore/records)
rp_room(launcher/trace USES common common/system common/files hoststore hoststore/records launcher/process)
rp_room(launcher/machine USES common common/system common/files hoststore launcher/process)
rp_room(launcher/events USES common common/system launcher/process)
rp_room(launcher/hosts USES common common/system hoststore launcher/process launcher/machine launcher/events)
rp_room(launcher/options USES common common/command_line hoststore hoststore/task_file launcher/process launcher/machine launcher/hosts)
rp_room(launcher/doctor USES common common/command_line common/system common/files model_files launcher/process launcher/machine launcher/hosts)
rp_room(launcher/hosts_doctor USES common common/system hoststore nodes launcher/machine launcher/events launcher/hosts
        launcher/doctor)
rp_room(launcher/view USES common common/command_line common/system hoststore/records launcher/process launcher/events
        launcher/hosts)
rp_room(launcher/probe USES common common/system cuda launcher/machine launcher/doctor)
rp_room(launcher USES common common/system common/files hoststore hoststore/records launcher/options launcher/process launcher/trace launcher/machine
        launcher/events launcher/hosts launcher/doctor launcher/hosts_doctor launcher/view)
rp_room(models/layers LIBTORCH USES common kernels kernels/cpu kernels/cpu/quantised model_files/config model_files)
rp_room(models/layers/attention LIBTORCH USES kernels models/layers)
rp_room(models/layers/delta_net LIBTORCH USES kernels kernels/cpu models/layers)
rp_room(models LIBTORCH USES common common/checked_files kernels model_files/config model_files model_files/weights models/layers
        models/layers/attention models/layers/delta_net)
rp_room(pipeline/description LIBTORCH USES common common/system hoststore models/layers)
rp_room(pipeline/torch_worker LIBTORCH USES common common/system hoststore optimizer device worker/executor worker models/layers models
        pipeline/description)
rp_room(pipeline/process LIBTORCH USES common common/system common/files hoststore hoststore/records hoststore/task_file coordinator/rounds
        launcher/process)
rp_room(pipeline LIBTORCH USES common common/system common/files common/checked_files hoststore/memory hoststore hoststore/records nodes scheduler
        scheduler/simulation optimizer device nccl model_files model_files/weights hoststore/task_file planner/prediction worker/executor worker
        coordinator/updates coordinator/run_plans coordinator launcher/process launcher/trace models/layers models pipeline/process pipeline/description
        pipeline/torch_worker)
rp_room(plugin LIBTORCH USES common common/system kernels kernels/cuda cuda models/layers models pipeline/description pipeline/torch_worker)
rp_room(train/settings USES common common/command_line common/files)
rp_room(train/data USES common common/files common/checked_files)
rp_room(train/output USES common common/system common/files)
rp_room(train/run USES common common/files common/checked_files scheduler model_files/config model_files model_files/weights
        planner/prediction train/settings train/output)
rp_room(train LIBTORCH USES common common/system common/files common/checked_files hoststore/memory launcher/process model_files/config
        planner/prediction models/layers train/settings train/data train/output train/run)

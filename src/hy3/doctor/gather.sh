# Prints what is to be known of this machine, one record a line: NAME, STATUS, content in base64,
# separated by tabs. Reads only. R is the folder that stands for /, empty for the machine itself;
# ONLY may be the name of one part; ENGINE matches command lines of engines.
# Keys and passwords are cut out here, before anything leaves the machine.
LC_ALL=C
export LC_ALL
LIMIT=2000000

put() { # NAME STATUS < content
    printf '%s\t%s\t' "$1" "$2"
    head -c "$LIMIT" | base64 | tr -d '\n'
    echo
}

files() { # PATH...
    for path in "$@"; do
        name=${path#"$R"}
        if [ ! -e "$path" ]; then
            case $path in *\**) ;; *) put "$name" absent </dev/null ;; esac
        elif [ -r "$path" ]; then
            grep -viE 'psk|passw|secret|private-key' "$path" 2>/dev/null | put "$name" ok
        else
            put "$name" denied </dev/null
        fi
    done
}

lines() { # NAME PATTERN PATH...: matching lines of many files, each after its file's name
    name=$1 pattern=$2
    shift 2
    grep -H "$pattern" "$@" 2>/dev/null </dev/null | sed "s|^$R||" | put "$name" ok
}

names() { # NAME PATH...: those that exist
    name=$1
    shift
    ls -d "$@" 2>/dev/null </dev/null | sed "s|^$R||" | put "$name" ok
}

tool() { # path of a program; none but planted ones when R is set
    if [ -n "$R" ]; then
        [ -x "$R/usr/bin/$1" ] && echo "$R/usr/bin/$1"
    else
        command -v "$1"
    fi
}

ask() { # NAME PROGRAM ARGUMENT...
    name=$1
    program=$(tool "$2")
    shift 2
    if [ -z "$program" ]; then
        put "$name" absent </dev/null
        return
    fi
    if answer=$($LIMITED "$program" "$@" 2>&1 </dev/null); then status=ok; else status=failed; fi
    printf '%s\n' "$answer" | hide_keys | put "$name" "$status"
}

hide_keys() {
    sed -E 's/((api[-_]?key|[-_]token|secret|password)"?[=: ]+)[^ ]+/\1***/gI'
}

machine() {
    files "$R/proc/meminfo" "$R/proc/sys/vm/swappiness" "$R/proc/sys/kernel/osrelease" \
        "$R/proc/driver/nvidia/version" "$R/proc/self/limits" "$R/etc/os-release" \
        "$R/etc/dgx-release" "$R/etc/default/earlyoom" "$R/etc/sysctl.conf" "$R"/etc/sysctl.d/*.conf \
        "$R/etc/systemd/logind.conf" "$R"/etc/systemd/logind.conf.d/*.conf
    names systemd "$R/run/systemd/system"
    names linger "$R"/var/lib/systemd/linger/*
    grep -hE '^(export )?(HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE)=' "$R/etc/environment" \
        2>/dev/null | put offline ok
    ask user id -un
    ask gpus nvidia-smi --format=csv,noheader,nounits --query-gpu=name,compute_cap,driver_version,clocks.sm,clocks.max.sm,utilization.gpu,power.draw,clocks_throttle_reasons.active
    names amd "$R/dev/kfd"
    names hub "$R$HOME"/.cache/huggingface/hub/models--*
}

network() {
    files "$R"/etc/netplan/* "$R"/etc/NetworkManager/system-connections/* \
        "$R"/etc/systemd/network/*.network "$R/etc/network/interfaces" \
        "$R"/etc/network/interfaces.d/*
    ask addresses ip -o -4 address
    lines net . "$R"/sys/class/net/*/mtu "$R"/sys/class/net/*/operstate "$R"/sys/class/net/*/speed
    hca="$R/sys/class/infiniband"
    lines infiniband '[^0:]' "$hca"/*/ports/*/state "$hca"/*/ports/*/rate "$hca"/*/ports/*/gids/* \
        "$hca"/*/ports/*/gid_attrs/types/*
    lines pcie_errors TOTAL_ERR "$hca"/*/device/aer_dev_fatal "$hca"/*/device/aer_dev_nonfatal
    names hca "$hca"/*
    names hca_interfaces "$hca"/*/device/net/*
    names rdma "$R"/dev/infiniband/*
}

software() {
    names nccl "$R"/usr/lib/*/libnccl.so.*.* "$R"/usr/local/cuda*/lib64/libnccl.so.*.*
    for folder in "$R"/usr/lib/python3*/*-packages "$R"/usr/local/lib/python3*/*-packages \
        "$R"/opt/*/lib/python3*/site-packages; do
        packages packages "$folder"
    done
    ask images docker images --no-trunc --format '{{.Repository}}:{{.Tag}} {{.ID}}'
    program=$(tool docker)
    running=
    [ -n "$program" ] && running=$($LIMITED "$program" ps -q --no-trunc 2>/dev/null </dev/null)
    # One word for each container, without spaces: meant to be split.
    [ -n "$running" ] && ask containers docker inspect --format \
        '{{.Name}}	{{.Config.Image}}	{{.Image}}	{{.Path}} {{join .Args " "}}' $running
}

packages() { # NAME FOLDER: the versions of what matters in a folder of Python packages
    [ -d "$2" ] && ls "$2" 2>/dev/null </dev/null | grep -E \
        '^(vllm|sglang|torch|ray|nvidia_nccl_cu[0-9]+|flashinfer_python|nvidia_cutlass_dsl)-.*\.dist-info$' |
        put "$1" ok
    for record in "$2"/vllm[-_]*.dist-info/RECORD "$2"/sglang-*.dist-info/RECORD; do
        [ -r "$record" ] && sources "$2" "$record" | put "sources${1#packages}" ok
    done
}

sources() { # FOLDER RECORD: files of an engine about Hy3: their hashes as installed, and now
    grep -E '/(hy_v3|hunyuan)[^/,]*\.py,sha256=' "$2" </dev/null | while IFS=, read -r path hash _; do
        printf '%s %s %s\n' "$path" "${hash#sha256=}" "$(sha256sum "$1/$path" 2>/dev/null)"
    done
}

processes() {
    grep -HE '^(Name|PPid|VmRSS|VmSwap):' "$R"/proc/[0-9]*/status 2>/dev/null </dev/null |
        sed "s|^$R||" | put processes ok
    # Zero bytes between words become spaces before anything is matched.
    for pid in $(grep -aH '' "$R"/proc/[0-9]*/cmdline 2>/dev/null </dev/null | tr '\0' ' ' |
        sed -n "s|^$R/proc/\([0-9]*\)/cmdline:|\1 |p" |
        grep -E "$ENGINE|raylet|earlyoom|rsync|scp|sftp-server|hf|huggingface" |
        sed 's/ .*//' | sort -u); do
        command=$(tr '\0' ' ' <"$R/proc/$pid/cmdline" 2>/dev/null)
        printf '%s\n' "$command" | hide_keys | put "command $pid" ok
        printf '%s\n' "$command" | grep -qE "$ENGINE" && engine "$R/proc/$pid" "$pid"
    done
}

engine() { # FOLDER PID: what a process of an engine runs with
    if [ ! -r "$1/maps" ] || [ ! -r "$1/environ" ]; then
        put "libraries $2" denied </dev/null
        put "environment $2" denied </dev/null
        return
    fi
    tr '\0' '\n' <"$1/environ" 2>/dev/null |
        grep -E '^(NCCL_|GLOO_SOCKET|TP_SOCKET|UCX_NET|VLLM_HOST_IP|VLLM_ROCM_USE_AITER|LLAMA_ARG_SPEC_DRAFT|HF_HUB_OFFLINE|HF_HOME|RAY_)' |
        put "environment $2" ok
    files "$1/limits"
    grep -oE '/[^ ]*libnccl\.so[^ ]*' "$1/maps" 2>/dev/null | sort -u | put "libraries $2" ok
    names "rdma $2" "$1"/root/dev/infiniband/*
    grep -oE '/[^ ]*/(site|dist)-packages/' "$1/maps" 2>/dev/null | sort -u |
        while IFS= read -r folder; do packages "packages $2" "$1/root$folder"; done
}

main() {
    # Without one of these, what is there would seem absent.
    for program in base64 grep head ls sed sha256sum sort tr; do
        command -v $program >/dev/null || { echo "no $program on PATH" >&2; exit 3; }
    done
    LIMITED=
    command -v timeout >/dev/null && LIMITED='timeout 15'
    for part in ${ONLY:-machine network software processes}; do $part; done
    echo end
}

# A function, so that a script that is cut off runs nothing.
main

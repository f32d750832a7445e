-- weft: makes `--gpu-mem=20G` also request 20 shards, where a shard is a GiB of GPU memory.
--
-- Runs in sbatch, srun and salloc (slurm.conf: CliFilterPlugins=lua), also for #SBATCH lines. A
-- user can avoid it: strict rules belong in job_submit.lua. A site with its own cli_filter.lua adds
-- weft_shards and the call in slurm_cli_pre_submit.

-- Memory of a shard, bytes: the same as `shard=` in plugstack.conf.
local SHARD_BYTES = 2 ^ 30

local UNITS = { [""] = 1, b = 1, k = 2 ^ 10, m = 2 ^ 20, g = 2 ^ 30, t = 2 ^ 40 }
local DECIMAL = { k = 1e3, m = 1e6, g = 1e9, t = 1e12 }

-- Bytes of an amount that the plugin has accepted: 20G, 20GiB, 20GB, 1.5g, 1048576.
local function bytes_of(text)
    local figure, unit = text:lower():match("^%s*([%d.e+]+)%s*(%a*)%s*$")
    if figure == nil then
        return nil
    end
    local letter, rest = unit:sub(1, 1), unit:sub(2)
    local factor = UNITS[letter]
    if rest == "b" then
        factor = DECIMAL[letter]
    end
    local number = tonumber(figure)
    return number and factor and number * factor
end

-- Whether the user has requested GPUs or shards by any of Slurm's own options.
local function asks_for_gpus(options)
    for _, name in ipairs({ "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket" }) do
        if options[name] ~= nil then
            return true
        end
    end
    local lists = (options["gres"] or "") .. "," .. (options["tres-per-task"] or "")
    return lists:match("gpu") ~= nil or lists:match("shard") ~= nil
end

-- Adds the shards.
local function weft_shards(options)
    local plugin = options["spank"] and options["spank"]["weft"]
    local memory = plugin and plugin["gpu-mem"]
    local bytes = memory and bytes_of(memory)
    if bytes == nil or asks_for_gpus(options) then
        return
    end
    local shards = string.format("shard:%d", math.ceil(bytes / SHARD_BYTES))
    local gres = options["gres"]
    if gres == nil or gres == "" then
        options["gres"] = shards
    elseif not gres:match("none$") then
        options["gres"] = gres .. "," .. shards
    end
end

function slurm_cli_setup_defaults(options, early_pass)
    return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
    weft_shards(options)
    return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job, step)
    return slurm.SUCCESS
end

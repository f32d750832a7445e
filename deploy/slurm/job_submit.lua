-- weft: an administrator's policy. Runs in slurmctld (slurm.conf: JobSubmitPlugins=lua), so no user
-- gets round it. An example: change the numbers. A site that has a job_submit.lua of its own adds
-- weft_policy and the call in slurm_job_submit.

-- Most shards (GiB) of one job on a node. More than one GPU has would wait for ever.
local MOST_SHARDS = 80

-- Shards of a job that asks for GPU memory in no way, in these partitions. Elsewhere it gets none.
-- Slurm tells nobody of a job's --gres=none: such a job gets them, too.
local DEFAULT_SHARDS = {}

-- Priorities below this (more important ones) are for these accounts alone; "*" is every one.
local FIRST_PRIORITY_OF_ALL = 0
local IMPORTANT_ACCOUNTS = {}

-- How a request names generic resources. Slurm 22.05 knows "gres:shard", 24.11 "gres/shard" alone.
-- They differ in this constant, too.
local GRES = slurm.GRES_ALLOW_TASK_SHARING and "gres/" or "gres:"

-- What the plugin has told of an option: weft's own form of its value.
local function said(request, name)
    local told = request.spank_job_env
    if told == nil then
        return nil
    end
    for at = 0, (request.spank_job_env_size or 0) - 1 do
        local value = (told[at] or ""):match("^SPANK_" .. name .. "=(.*)$") or (told[at] or ""):match("^" .. name .. "=(.*)$")
        if value ~= nil then
            return value
        end
    end
    return nil
end

-- The partition that the request names, or for a new job the cluster's own choice.
local function partition_of(request, job, partitions)
    if request.partition ~= nil or job ~= nil then
        return request.partition or ""
    end
    for name, partition in pairs(partitions or {}) do
        if partition.flag_default == 1 then
            return name
        end
    end
    return ""
end

-- A line for the user where the job may not be, else nil. `job`: what is there already, if the
-- request changes a job.
local function weft_policy(request, job, partitions)
    local gres = request.tres_per_node or (job and job.tres_per_node) or ""
    local shards = tonumber(gres:match("shard:(%d+)") or (gres:match("shard") and "1"))
    if shards == nil and not gres:match("gpu") then
        local default = DEFAULT_SHARDS[partition_of(request, job, partitions)]
        if default ~= nil then
            request.tres_per_node = (gres == "" and "" or gres .. ",") .. GRES .. "shard:" .. default
            shards = default
        end
    end
    if shards ~= nil and shards > MOST_SHARDS then
        return string.format("%d GiB of GPU memory on a node: a job may have %d", shards, MOST_SHARDS)
    end
    local priority = tonumber(said(request, "WEFT_PRIORITY"))
    if priority ~= nil and priority < FIRST_PRIORITY_OF_ALL then
        if not (IMPORTANT_ACCOUNTS["*"] or IMPORTANT_ACCOUNTS[request.account or ""]) then
            return string.format("--gpu-priority=%d is not for this account: %d to 9", priority, FIRST_PRIORITY_OF_ALL)
        end
    end
    return nil
end

local function answer(request, job, partitions)
    local why = weft_policy(request, job, partitions)
    if why ~= nil then
        slurm.log_user("weft: %s", why)
        return slurm.ERROR
    end
    return slurm.SUCCESS
end

function slurm_job_submit(request, partitions, uid)
    return answer(request, nil, partitions)
end

function slurm_job_modify(request, job, partitions, uid)
    return answer(request, job, partitions)
end

# A hook of the Forewarn agent: takes a web server out of service before an event, and puts it back after it.
#
# The agent tells in variables what is going on: FOREWARN_STEP, FOREWARN_EVENT_TYPE, FOREWARN_EVENT_NOT_BEFORE and more.
# An exit status other than 0 means that it failed; -File makes an error that nobody catches one of these. The agent may
# run a step again that was cut off, so each does no harm when it is done twice.

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'

$Service = 'W3SVC'                                # what is stopped: IIS
$HealthFile = 'C:\inetpub\wwwroot\healthy.txt'    # what the load balancer looks for
$DrainSeconds = 30                                # until it has noticed, and old requests are done

switch ($env:FOREWARN_STEP) {
    'prepare' {
        if (Test-Path -LiteralPath $HealthFile) {
            Remove-Item -LiteralPath $HealthFile
            Start-Sleep -Seconds $DrainSeconds
        }
        Stop-Service -Name $Service
        Write-Output "$Service is stopped for $env:FOREWARN_EVENT_TYPE $env:FOREWARN_EVENT_ID"
    }
    { $_ -in 'recover', 'canceled' } {
        Start-Service -Name $Service
        Set-Content -LiteralPath $HealthFile -Value 'healthy' -Encoding Ascii
        Write-Output "$Service is back"
    }
    default {
        Write-Error "this hook is for prepare, recover and canceled, not for '$env:FOREWARN_STEP'"
    }
}
